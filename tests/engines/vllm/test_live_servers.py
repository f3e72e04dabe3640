"""Two real vLLM servers on one core, and the real `openai` client: tokens, loans and deaths."""

import signal
import subprocess
import time
from pathlib import Path
from urllib.error import HTTPError

import pytest

import rose
from bench.vllm_servers import KV_BYTES, PYTHON, ROOT, Talk
from rose._core import HostGate
from rose.slo.verify import verify_log
from tests.engines.vllm.live import BURST, BURST_TOKENS, BURSTS, ROUNDS_MAX, WAIT_S, Pair
from tests.waiting import wait_for

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

STILL_S = 20.0


def test_both_say_what_is_lent(pair: Pair) -> None:
    serving, borrower = pair.serving.status, pair.borrower.status
    assert (serving["role"], borrower["role"]) == ("serving", "rollout")
    assert serving["pool_bytes"] == KV_BYTES
    assert borrower["lent_bytes"] == serving["lent_bytes"]
    assert serving["evidence_missing"] == {"step": 0, "chunk": 0}
    assert borrower["gates"] == "layers"
    assert serving["targets_too_low"] == {}
    assert serving["granted_s"] > 0
    assert serving["binding"] is None or "must fit" in serving["binding"]
    assert borrower["since_step_s"] >= 0
    assert serving["weights"] is borrower["weights"] is None


def gate_of(engine_pid: int) -> HostGate:
    """Return the gate of an engine in another process."""
    for one in Path(f"/proc/{engine_pid}/fd").iterdir():
        if "rose-gate" in str(one.readlink()):
            with one.open("r+b", buffering=0) as page:
                return HostGate.attach(page.fileno())
    raise AssertionError("the engine has no gate")


def test_a_request_closes_the_gate_before_it_reaches_the_engine(pair: Pair) -> None:
    gate = gate_of(pair.serving.engine_pid)
    epoch = gate.close_epoch
    with pytest.raises(HTTPError, match="404"):  # So the engine never gets this request.
        pair.serving.post("/v1/completions", model="another", prompt="1 + 1 =")
    assert gate.close_epoch > epoch
    assert not gate.is_open()


def test_revocations_and_aborts_change_no_token(pair: Pair) -> None:
    aborted, revoked = pair.borrower.status["aborted_steps"], pair.serving.status["revocations"]
    for _ in range(ROUNDS_MAX):
        rollouts = pair.roll_out()
        for _ in range(BURSTS):
            pair.burst()
        assert rollouts.tokens() == pair.rollouts_alone
        if pair.borrower.status["aborted_steps"] > aborted:
            break
    assert pair.borrower.status["aborted_steps"] > aborted
    assert pair.serving.status["revocations"] > revoked
    # vLLM never preempts for a loan: memory comes back before the step that needs it.
    assert pair.serving.counter("vllm:num_preemptions_total") == 0


def test_an_operator_takes_all_back_and_rollouts_wait(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    capped = pair.serving.status["revoked"]["capped"]
    pair.lending("off")
    wait_for(lambda: pair.serving.status["lent_bytes"] == 0)
    assert pair.serving.status["revoked"]["capped"] > capped
    assert not rollouts.is_over
    wait_for(lambda: "no step for 10 s" in pair.borrower.log.read_text(), timeout_s=WAIT_S)
    assert "`rose lending on`" in pair.borrower.log.read_text()
    assert pair.borrower.status["refused"] == "over_limit"
    assert pair.borrower.is_healthy()
    pair.lending("limit", "0.5")
    assert rollouts.tokens() == pair.rollouts_alone
    assert pair.serving.status["lent_bytes"] <= KV_BYTES / 2
    pair.lending("on")


def test_paused_rollouts_go_on_with_their_tokens(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    pair.borrower.post("/pause?mode=keep&clear_cache=false")
    made = pair.borrower.counter("vllm:generation_tokens_total")
    pair.burst()
    assert pair.borrower.counter("vllm:generation_tokens_total") == made
    pair.borrower.post("/resume")
    assert rollouts.tokens() == pair.rollouts_alone


def test_fresh_weights_reach_the_borrower_while_serving_works(pair: Pair) -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(pair.rolled_out)
    first = {name: one.detach().clone() for name, one in model.state_dict().items()}
    other = {name: one * 1.25 if "down_proj" in name else one for name, one in first.items()}

    def push(version: int) -> None:
        pair.borrower.post("/start_weight_update")
        pair.borrower.post("/update_weights", update_info={"version": version, "timeout_s": 60})
        pair.borrower.post("/finish_weight_update", weight_version=str(version))
        pair.borrower.post("/reset_prefix_cache")

    with rose.publish(first) as publisher:
        upstream = {"address": publisher.address, "token": publisher.token}
        pair.borrower.post("/init_weight_transfer_engine", init_info=upstream)
        serving = Talk(pair.serving, BURST, tokens=BURST_TOKENS)
        push(publisher.update(other))
        assert serving.tokens() == pair.burst_alone
        changed = pair.roll_out().tokens()
        assert all(one != before for one, before in zip(changed, pair.rollouts_alone, strict=True))
        newest = publisher.update(first)
        push(newest)
        assert pair.roll_out().tokens() == pair.rollouts_alone
        weights = pair.borrower.status["weights"]
        assert (weights["version"], len(weights["digest"])) == (newest, 32)


def test_without_the_file_of_the_socket_both_go_on(pair: Pair) -> None:
    kept = pair.socket.with_name("kept")
    pair.socket.rename(kept)
    rollouts = pair.roll_out()
    pair.burst()
    assert rollouts.tokens() == pair.rollouts_alone
    kept.rename(pair.socket)


def test_a_second_borrower_is_refused(pair: Pair) -> None:
    options = ("rollout", "another", "--attach", str(pair.socket))
    command = [str(PYTHON), "-m", "rose.cli.main", "vllm", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "lends to another borrower" in done.stderr


def test_a_signal_ends_the_log_and_the_socket(pair: Pair, tmp_path: Path) -> None:
    pair.serving.stop()
    for which in (signal.SIGTERM, signal.SIGINT):
        log = tmp_path / f"{which.name}.log"
        serving = pair.server_that_lends("--log", str(log))
        serving.start()
        request = Talk(serving, BURST[:1], tokens=BURST_TOKENS * 5)
        wait_for(lambda serving=serving: serving.status["running"] > 0)
        serving.signal_all(which)
        serving.signal_all(signal.SIGTERM)  # A second signal changes nothing.
        serving.wait_until_ended()
        request.answers()
        assert verify_log(log).violations == []
        assert not pair.socket.exists()
    pair.serving.start()
    assert pair.roll_out().tokens() == pair.rollouts_alone


def test_serving_that_stands_still_leaves_the_borrower_its_requests(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    pair.serving.signal_engine(signal.SIGSTOP)
    time.sleep(STILL_S)
    assert pair.borrower.is_healthy()
    pair.serving.signal_engine(signal.SIGCONT)
    assert rollouts.tokens() == pair.rollouts_alone
    pair.burst()


def test_rollouts_outlive_serving_and_end_when_it_is_back(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    pair.serving.kill()
    wait_for(lambda: pair.borrower.status["gave_back"] is not None)
    assert pair.borrower.is_healthy()
    pair.serving.start()
    assert rollouts.tokens() == pair.rollouts_alone
    pair.burst()


def test_serving_outlives_a_borrower_that_dies(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    serving = Talk(pair.serving, BURST, tokens=BURST_TOKENS)
    pair.borrower.kill()
    assert serving.tokens() == pair.burst_alone
    assert all(one["error"] for one in rollouts.answers())
    wait_for(lambda: pair.serving.status["lent_bytes"] == 0)
    pair.borrower.start()
    assert pair.roll_out().tokens() == pair.rollouts_alone


def test_serving_outlives_a_borrower_that_stands_still(pair: Pair) -> None:
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    pair.borrower.signal_engine(signal.SIGSTOP)
    pair.burst()
    time.sleep(STILL_S)
    pair.burst()
    assert pair.serving.status["gave_back"] is None
    # What it kept too long has cost it its process.
    wait_for(lambda: pair.serving.status["lent_bytes"] == 0)
    pair.borrower.kill()
    rollouts.answers()


def test_a_borrower_that_maps_only_its_loans_generates_the_same_tokens(
    pair: Pair, tmp_path: Path
) -> None:
    mapped = Pair(tmp_path, "--isolation", "mapped")
    try:
        assert mapped.serving.status["isolation"] == "mapped"
        assert mapped.rollouts_alone == pair.rollouts_alone
        rollouts = mapped.roll_out()
        mapped.wait_until_lent()
        mapped.burst()
        assert rollouts.tokens() == pair.rollouts_alone
        assert mapped.serving.status["revocations"] > 0
        assert mapped.serving.status["gave_back"] is None
    finally:
        mapped.close()
