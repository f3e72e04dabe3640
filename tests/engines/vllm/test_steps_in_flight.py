"""A step of the borrower pins what it reads; told to stop at its gate, it leaves no trace."""

import threading
from typing import Any

import pytest

from rose.errors import StepAborted
from rose.executor import Quantum
from tests.engines.vllm.rig import BLOCK_TOKENS, BLOCKS_PER_SLAB, REQUEST_TOKENS, Pair

pytestmark = pytest.mark.peer

SLABS = 40
LONG_S = 200.0
PROMPT, TOKENS = 4 * BLOCK_TOKENS + 3, 20


def fill(vllm, pair: Pair, *, requests: int = 24) -> None:
    """Let the borrower hold all that it is lent, in decodes that go on."""
    for index in range(requests):
        prompt = [index] * PROMPT
        pair.borrower.add_request(vllm.request(f"rollout {index}", prompt, tokens=TOKENS))
    vllm.step(pair.borrower)
    assert len(pair.borrower.running) > 4


def urgent(vllm, name: str = "urgent") -> Any:
    return vllm.request(name, [999] * (REQUEST_TOKENS - 8), tokens=2)


def held(pair: Pair) -> int:
    return pair.device.arbiter.snapshot().partitions[1].held


class StepAtItsGate:
    """Runs one step of the borrower, as an engine does, in a thread of its own."""

    def __init__(self, vllm, pair: Pair) -> None:
        self._vllm = vllm
        self._pair = pair
        self._may_go_on = threading.Event()
        self.is_running = threading.Event()
        self.outcome = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.is_running.wait(LONG_S)

    def _run(self) -> None:
        lane, borrower = self._pair.borrower.lane, self._pair.borrower
        while not isinstance(quantum := lane.try_step(timeout_ms=100), Quantum):
            pass
        with quantum:
            plan = borrower.schedule()
            self.is_running.set()
            assert self._may_go_on.wait(LONG_S)
            try:
                lane.gate()
                lane.finish()
            except StepAborted:
                borrower.step_aborted(plan)
                self.outcome = "aborted"
            else:
                self._vllm.run(borrower, plan)
                self.outcome = "ended"

    def go_on(self) -> None:
        self._may_go_on.set()

    def join(self) -> None:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()


def test_a_step_at_its_gate_is_aborted_and_serving_is_planned_in_the_same_step(
    vllm, log_path
) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, revoke_ms=20_000.0) as pair:
        fill(vllm, pair)
        before = dict.fromkeys(pair.borrower.requests, 0)
        before |= {name: one.num_output_tokens for name, one in pair.borrower.requests.items()}
        step = StepAtItsGate(vllm, pair)
        # The gate closes as the request comes, and the step runs into it.
        pair.serving.add_request(urgent(vllm))
        step.go_on()
        plan = vllm.step(pair.serving)
        step.join()
        assert list(plan.num_scheduled_tokens) == ["urgent"]
        assert step.outcome == "aborted"
        assert not pair.borrower.running
        assert {
            name: one.num_output_tokens for name, one in pair.borrower.requests.items()
        } == before
        assert sum(one.slabs_fenced for one in pair.device.lender.collector.history) == 0
        pair.finish()
        assert {pair.tokens_of[name] for name in before} == {TOKENS}


def test_a_step_that_ends_delivers_the_tokens_of_requests_that_were_preempted_in_it(
    vllm, log_path
) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, revoke_ms=20_000.0) as pair:
        fill(vllm, pair)
        lent = held(pair)
        plan = pair.borrower.schedule()
        order = [one.request_id for one in pair.borrower.running]
        pair.device.lender.take_back(lent)  # all of it; nobody waits here
        assert [one.request_id for one in pair.borrower.waiting][: len(order)] == order
        assert not pair.borrower.running
        assert held(pair) == lent  # the step pins every one of them
        vllm.tokens_of.clear()
        vllm.run(pair.borrower, plan)
        assert held(pair) == 0
        assert dict(vllm.tokens_of) == dict.fromkeys(plan.num_scheduled_tokens, 1)
        assert all(
            pair.borrower.requests[name].num_output_tokens == 2
            for name in plan.num_scheduled_tokens
        )


def test_slabs_leave_while_tokens_are_sampled_and_the_tokens_are_delivered(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, revoke_ms=20_000.0) as pair:
        fill(vllm, pair)
        plan = pair.borrower.schedule()
        pair.borrower.forward_ended(plan)
        pair.device.lender.take_back(held(pair))
        assert held(pair) == 0
        vllm.run(pair.borrower, plan)
        assert {vllm.tokens_of[name] for name in plan.num_scheduled_tokens} == {2}
        pair.finish()
        assert set(pair.tokens_of.values()) == {TOKENS}


def test_slabs_that_were_revoked_unasked_are_emptied_before_the_next_step(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64) as pair:
        fill(vllm, pair)
        arbiter, lane = pair.device.arbiter, pair.borrower.lane
        arbiter.revoke(lane.kv.partition, 3, deadline_ns=arbiter.now_ns() + 10**12)
        assert len(lane.leaving()) == 3
        plan = pair.borrower.schedule()
        assert not lane.leaving()
        vllm.run(pair.borrower, plan)
        # There was room elsewhere, so that what was preempted runs on in the same step.
        assert pair.borrower.preempted_tokens > 0
        assert len(plan.num_scheduled_tokens) == 24


def test_slabs_that_were_revoked_unasked_within_a_step_leave_when_it_ends(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64) as pair:
        fill(vllm, pair)
        arbiter, lane = pair.device.arbiter, pair.borrower.lane
        plan = pair.borrower.schedule()
        arbiter.revoke(lane.kv.partition, 3, deadline_ns=arbiter.now_ns() + 10**12)
        assert len(lane.leaving()) == 3
        # It may be long until the next step is planned.
        vllm.run(pair.borrower, plan)
        assert not lane.leaving()


def test_the_slabs_that_cost_least_are_given_first(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64) as pair:
        # Five requests, each with three slabs of its own, the later the further.
        for index in range(5):
            prompt = [index] * (12 * BLOCK_TOKENS - TOKENS)
            pair.borrower.add_request(vllm.request(f"{index}", prompt, tokens=TOKENS))
            for _ in range(3):
                vllm.step(pair.borrower)
        progress = {one.request_id: one.num_computed_tokens for one in pair.borrower.running}
        assert list(progress.values()) == sorted(set(progress.values()), reverse=True)
        pair.device.lender.take_back(2)
        assert [one.request_id for one in pair.borrower.running] == ["0", "1", "2", "3"]
        assert [one.request_id for one in pair.borrower.waiting] == ["4"]
        assert pair.borrower.preempted_tokens == progress["4"]


def test_what_is_only_cached_is_given_before_any_request_is_touched(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64) as pair:
        for index in range(8):
            prompt = [index] * (8 * BLOCK_TOKENS + 1)
            pair.borrower.add_request(vllm.request(f"{index}", prompt, tokens=1))
        pair.finish()
        pair.borrower.add_request(vllm.request("live", [9] * PROMPT, tokens=TOKENS))
        vllm.step(pair.borrower)
        needed = pair.borrower._slabs_of(pair.borrower.requests["live"])
        assert held(pair) > 2 * len(needed)
        pair.device.lender.take_back(held(pair) - len(needed))
        assert set(pair.borrower.lane.slabs()) == needed
        assert pair.borrower.preempted_tokens == 0
        # The prefixes are gone with their slabs: nobody finds a block of somebody else's.
        pair.borrower.add_request(vllm.request("again", [0] * (8 * BLOCK_TOKENS + 1), tokens=1))
        plan = vllm.step(pair.borrower)
        assert [one.num_computed_tokens for one in plan.scheduled_new_reqs] == [0]


def test_serving_waits_for_a_busy_borrower_until_the_deadline_and_no_longer(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, revoke_ms=30.0) as pair:
        fill(vllm, pair)
        is_held, may_end = threading.Event(), threading.Event()

        def plan_forever() -> None:
            with pair.borrower._books:
                is_held.set()
                assert may_end.wait(LONG_S)

        thread = threading.Thread(target=plan_forever, daemon=True)
        thread.start()
        assert is_held.wait(LONG_S)
        running = list(pair.borrower.running)
        pair.device.lender.take_back(2)
        # It came back although the borrower's books were taken, and did not touch them.
        assert pair.borrower.running == running
        assert len(pair.borrower.lane.leaving()) == 2
        may_end.set()
        thread.join(LONG_S)
        vllm.step(pair.borrower)
        assert not pair.borrower.lane.leaving()


def test_an_admission_leaves_the_watermark_free_if_that_can_be_had(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, watermark=0.1) as pair:
        free = pair.borrower.kv_cache_manager.block_pool.get_num_free_blocks
        for index in range(2):
            prompt = [index] * PROMPT
            pair.borrower.add_request(vllm.request(str(index), prompt, tokens=TOKENS))
        vllm.step(pair.borrower)
        assert len(pair.borrower.running) == 2
        assert free() >= 0.1 * SLABS * BLOCKS_PER_SLAB


def test_a_long_prompt_is_admitted_whole_or_not_at_all(vllm, log_path) -> None:
    chunks = {"step_tokens": 64, "sequences": 64}
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, **chunks) as pair:
        for index in range(24):
            prompt = [index] * PROMPT
            pair.borrower.add_request(vllm.request(f"rollout {index}", prompt, tokens=500))
        while len(pair.borrower.running) < 16:
            vllm.step(pair.borrower)
        pair.serving.add_request(urgent(vllm))
        plan = vllm.step(pair.serving)
        # Its first chunk alone would have fitted what was free; its last will too.
        assert plan.num_scheduled_tokens == {"urgent": 64}
        pool = pair.serving.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() >= (REQUEST_TOKENS - 8 - 64) // BLOCK_TOKENS
        while pair.serving.has_unfinished_requests():
            vllm.step(pair.serving)
        assert pair.tokens_of["urgent"] == 2


def test_a_preempted_request_that_runs_at_once_tells_the_worker_its_tokens_again(
    vllm, log_path, monkeypatch
) -> None:
    # The first of vLLM's two model runners keeps the tokens of the requests of the last step.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64) as pair:
        fill(vllm, pair)
        running = [one.request_id for one in pair.borrower.running]
        pair.device.lender.take_back(held(pair))
        plan = pair.borrower.schedule()
        again = plan.scheduled_cached_reqs
        assert again.resumed_req_ids
        assert again.resumed_req_ids <= set(running)
        assert again.resumed_req_ids == again.all_token_ids.keys()
        vllm.run(pair.borrower, plan)


@pytest.mark.parametrize("is_revoked", [False, True])
def test_no_block_that_an_aborted_step_did_not_write_is_found_again(
    vllm, log_path, is_revoked: bool
) -> None:
    chunks = {"step_tokens": 3 * BLOCK_TOKENS, "sequences": 4}
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=64, **chunks) as pair:
        prompt = list(range(6 * BLOCK_TOKENS + 1))
        pair.borrower.add_request(vllm.request("once", prompt, tokens=TOKENS))
        vllm.step(pair.borrower)  # Three blocks are written.
        plan = pair.borrower.schedule()  # Three more are not yet, but vLLM has cached them.
        if is_revoked:
            pair.borrower._evacuate(frozenset(pair.borrower.lane.slabs()))
        pair.borrower.step_aborted(plan)
        plan = pair.borrower.schedule()
        (again,) = plan.scheduled_new_reqs
        assert again.num_computed_tokens == 3 * BLOCK_TOKENS
        vllm.run(pair.borrower, plan)
        pair.finish()
        assert pair.tokens_of["once"] == TOKENS
