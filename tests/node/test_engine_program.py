"""`rose engine` with models: a borrower outlives serving, and weights follow their trainer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rose.engines.transformers.worker", reason="needs transformers")
import rose
from bench.row_publisher import RowPublisher
from rose.engines.transformers import EngineConfig, load_model
from rose.engines.transformers.live_weights import LiveWeights
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.server import serve
from tests.node.programs import Served, started
from tests.waiting import LONG_S, wait_for

MODEL = ("engine", "micro-policy", "--seed", "3", "--listen", "127.0.0.1:0", "--seats", "4")
SLO = rose.SLO(ttft_ms=5000, tpot_ms=2000)


def state(one: Served) -> dict:
    return one.get("/rose/status")["engine"]


def test_a_request_that_an_engine_cannot_run_is_refused_alone() -> None:
    with started(*MODEL, "--kv-tokens", "512") as one:
        assert len(one.tokens()) == 6
        status = state(one)["status"]
        assert (status["kind"], status["vocabulary"], status["seats"]) == ("dedicated", 128, 4)
        assert (status["context_tokens"], status["kv_tokens"]) == (512, 512)
        assert status["prefill_tokens_per_s"] > 0 < status["decode_step_ms"]
        assert set(status["features"]) >= {"top_p", "top_k", "min_p", "min_tokens", "logprobs"}
        for wrong in ({"prompt": [5, 128]}, {"max_tokens": 600}, {"prompt": [5] * 600}):
            answer = one.client.post("/v1/completions", json={"prompt": [1], **wrong})
            assert answer.status_code == 400, answer.text
        before = one.tokens()
        assert one.tokens(top_k=1) == one.tokens(temperature=0.0)
        assert one.tokens() == before
        assert one.end() == 0


@contextmanager
def serving(socket: Path) -> Iterator[rose.Device]:
    """Serve in this process, and lend at the socket."""
    policy = rose.Policy(epsilon=0.05, park_wait_ms=200)
    with rose.open("cpu", slo=SLO, pool_bytes=32 << 20, policy=policy) as device:
        engine = rose.attach(
            load_model("micro-policy", seed=1),
            device=device,
            role="serving",
            config=EngineConfig(max_batch_tokens=64),
            request_tokens=64,
        )
        engine.start()
        try:
            device.listen(str(socket))
            yield device
        finally:
            engine.stop()


def test_a_borrower_waits_for_serving_and_outlives_it(tmp_path: Path) -> None:
    socket = tmp_path / "lend.sock"
    with started(*MODEL, "--kv-tokens", "8192", "--attach", str(socket)) as one:
        now = state(one)
        assert (now["status"]["kind"], now["grant"]["kv_tokens"]) == ("borrowed", 0)
        assert str(socket) in now["wait"]["reason"]
        assert now["wait"]["waited_s"] >= 0
        assert now["wait"]["remedy"] == "start the serving engine at the same socket; requests wait"
        assert not one.is_well()
        events = one.events()
        epochs, truth = [], None
        for _ in range(2):
            with serving(socket):
                wait_for(lambda: state(one)["grant"]["kv_tokens"] > 0)
                wait_for(one.is_well)
                epochs.append(state(one)["grant"]["grant_epoch"])
                assert state(one)["wait"].get("remedy") != now["wait"]["remedy"]
                truth = truth or one.tokens()
                assert one.tokens() == truth
            wait_for(lambda: state(one)["grant"]["kv_tokens"] == 0)
            wait_for(lambda: state(one)["wait"]["reason"] is not None)
            assert one.process.poll() is None
        assert epochs[0] < epochs[1]
        told = [next(events) for _ in range(4)]
        assert told[-1][0] == "wait"
        assert told[-1][1]["reason"]
        assert one.end() == 0
        assert "Traceback" not in one.errors


class Trainer:
    """Publishes; `restart` is another incarnation at the same address."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.bits = LiveWeights(load_model("micro-policy", seed=3)).row.copy()
        self._incarnation = 0
        self._random = np.random.default_rng(0)
        self.restart(first_version=5)
        self.token_file = folder / "token"
        self.token_file.write_text(self.server.token + "\n")

    def restart(self, *, first_version: int) -> None:
        self._incarnation += 1
        log = VersionLog()
        self._publisher = RowPublisher(self.bits, "run", self._incarnation, first_version, log)
        where = {}
        if self._incarnation > 1:
            where = {"address": self.server.address, "token": self.server.token}
        self.server = serve(log, **where)
        self._stack.callback(self.server.close)

    def publish(self) -> int:
        """Change one bit of mantissa in one weight of a hundred; return the version."""
        at = self._random.choice(len(self.bits), len(self.bits) // 100, replace=False)
        self.bits[at] ^= 1
        return self._publisher.publish(self.bits).version.n


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engine_follows_its_trainer_through_every_death(tmp_path: Path) -> None:
    with ExitStack() as stack:
        trainer = Trainer(stack, tmp_path)
        follow = ("--weights", trainer.server.address, "--weights-token", str(trainer.token_file))
        words = (*MODEL, "--kv-tokens", "2048", "--weight-version", "5", *follow)

        def versions(one: Served) -> dict:
            return one.get("/weight_versions")["versions"]

        with started(*words) as first:
            assert versions(first) == {"5": 1}
            version = trainer.publish()
            wait_for(lambda: state(first)["version"]["version"] == version, timeout_s=LONG_S)
            assert state(first)["version"]["is_match"]
            assert versions(first) == {str(version): 1}
            first.process.kill()

        # The next engine starts from the old weights, and catches up.
        with started(*words) as second:
            version = trainer.publish()
            wait_for(lambda: state(second)["version"]["version"] == version)
            trainer.server.close()
            trainer.restart(first_version=version + 10)
            version = trainer.publish()
            wait_for(lambda: state(second)["version"]["version"] == version)
            assert second.tokens(weight_version={"min": version}) == second.tokens()
            assert second.end() == 0
