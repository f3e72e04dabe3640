"""A small RL loop: serving and a borrower on one device, a trainer and a dedicated worker."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from typing_extensions import Self

from rose.clock import BootClock
from rose.engines.transformers import EngineWorker, LiveWeights, load_model
from rose.scheduler import SchedulerSettings
from rose.scheduler.worker import WorkerKind
from rose_lab.demo.record import CommitRecord
from rose_lab.demo.rl.rl_loop import BORROWED, DEDICATED, RlLoop
from rose_lab.demo.rl.settings import RlLoopSettings, RolloutLimits, TrainerSettings
from tests.engines.pair import Client, Pair
from tests.engines.thin import thin_qwen2

LONG_S = 150.0
LOOK_S = 0.05
# What was said is heard within this, and a worker that is silent for so long is not yet given up.
HEARD_S = 0.5
MODEL = "micro-policy"


def settings(folder: Path, **changes) -> RlLoopSettings:
    return RlLoopSettings(
        **{
            "model": MODEL,
            "seed": 3,
            "folder": folder,
            "is_background": False,
            "rollouts": RolloutLimits(
                in_flight=24,
                group_size=4,
                turn_tokens_max=96,  # Longer than a worker waits before it reports tokens.
                context_tokens_max=800,
            ),
            "scheduler": SchedulerSettings(max_staleness=8, batch_trajectories=8, worker_lag_max=4),
            "trainer": TrainerSettings(
                lr=1e-4, batch=8, learned_max=4, publish_every_s=0.5, checkpoint_every=4
            ),
            "seats": 6,
            "kv_tokens": 8192,
            **changes,
        }
    )


class RlLoopRig:
    """Everything at work: the borrowed worker has a lease, and serving asks for memory."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(MODEL, seed=3)
        self.weights = LiveWeights(self.model)
        self.pair = Pair((thin_qwen2(seed=1), self.model), is_sampling=True)
        self.rl_loop = RlLoop(settings(folder), wait_s=lambda _n, _turn: 0.02, clock=BootClock())
        self.worker = EngineWorker(
            self.pair.rollout, BORROWED, WorkerKind.BORROWED, self.rl_loop.rollouts.receive
        )
        self._serving = Client(self.pair.serving, "serving", seed=5)
        self._is_over = threading.Event()
        self._traffic = threading.Thread(target=self._send, name="traffic")

    def __enter__(self) -> Self:
        self.pair.__enter__()
        self.rl_loop.start()
        self.rl_loop.add_borrowed(self.worker, self.weights, seats=6, share=0.5)
        self.worker.grant()
        self._traffic.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._is_over.set()
        self._traffic.join(timeout=LONG_S)
        self.rl_loop.stop()
        self.pair.__exit__(*failure)

    def _send(self) -> None:
        """Serve bursts that take slabs from the borrower, for as long as the rig lives.

        A burst waits for the answers of the last one: on a slow machine serving is idle between
        two bursts too.
        """
        while not self._is_over.wait(0.3):
            for _ in range(3):
                self._serving.send(prompt_tokens=200, new_tokens=8)
            self._serving.wait()

    def commits(self, kind: WorkerKind) -> list[CommitRecord]:
        return [one for one in self.rl_loop.history.commits if one.worker == kind.value]

    def newest(self, kind: WorkerKind) -> int:
        return max((one.version for one in self.commits(kind) if one.is_match), default=0)

    def incidents(self, said: str) -> int:
        return sum(said in what for _, what in self.rl_loop.history.incidents)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the RL loop must turn all the while."""
        until = time.monotonic() + LONG_S
        while not condition():
            assert self.rl_loop.failure() is None, self.rl_loop.failure()
            assert time.monotonic() < until, (
                self.rl_loop.rollouts.counts(),
                self.rl_loop.history.incidents,
            )
            time.sleep(LOOK_S)

    def finished(self) -> int:
        return self.rl_loop.rollouts.counts().finished

    def wait_for_more_tokens(self, kind: WorkerKind) -> None:
        """Wait until a worker of `kind` says something."""
        tokens = self.rl_loop.history.tokens(kind)
        self.wait(lambda: self.rl_loop.history.tokens(kind) > tokens)

    def kill_dedicated_mid_turn(self) -> int:
        """Kill the dedicated worker when it has said a part of a turn that never moved before.

        Returns:
            How many had resumed until then.
        """
        self.wait(self._is_frozen_mid_turn)
        resumed = self.rl_loop.rollouts.counts().resumed
        self.rl_loop.programs[DEDICATED].kill()
        return resumed

    def _is_frozen_mid_turn(self) -> bool:
        """Freeze the dedicated worker, unless all that it said turns out to have ended.

        A turn that looks open may have ended already: that is heard a moment later.
        """
        pid = self.rl_loop.programs[DEDICATED].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(HEARD_S)
        history = self.rl_loop.history
        if any(
            part.worker == WorkerKind.DEDICATED.value and part.tokens and not part.end_s
            for part in list(history._open.values())
            if part.trajectory not in history.resumed
        ):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    def wait_for_more_finished(self, count: int) -> None:
        """Wait until so many trajectories more have finished."""
        finished = self.finished()
        self.wait(lambda: self.finished() >= finished + count)
