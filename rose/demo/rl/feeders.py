"""Rollouts without a trainer: generations of a fixed length, or turns of trajectories."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.demo.rl.rollouts import RolloutThread
from rose.demo.rl.settings import LoopSettings
from rose.demo.rl.trajectory import Trajectory
from rose.demo.workload import RolloutLoad
from rose.engines.transformers import Engine, EngineWorker, Output
from rose.scheduler import Capabilities, SchedulerSettings
from rose.scheduler.worker import TurnOutput, WorkerEvent, WorkerKind


class RolloutFeeder(RolloutLoad):
    """Keeps a fixed number of generations running on a borrower, from a fixed set of prompts."""

    def __init__(
        self,
        engine: Engine,
        *,
        concurrency: int,
        prompt_tokens: int,
        output_tokens: int,
        vocabulary: int,
        seed: int,
    ) -> None:
        """Prepare the prompt set; nothing runs before `start`.

        Args:
            engine: the borrower.
            concurrency: generations in flight.
            prompt_tokens: length of each prompt.
            output_tokens: length of each generation.
            vocabulary: token ids are drawn below this.
            seed: of the prompt set.
        """
        super().__init__(engine)
        rng = np.random.default_rng(seed)
        self._tokens = 0
        self._failures: list[str] = []
        self._concurrency = concurrency
        self._output_tokens = output_tokens
        self._prompts = rng.integers(vocabulary, size=(4 * concurrency, prompt_tokens)).tolist()
        self._next = 0

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._tokens

    @property
    def failures(self) -> Sequence[str]:
        """Why generations failed, the engine's own end included."""
        return [*self._failures, *super().failures]

    def start(self) -> None:
        """Start the engine and fill it; it stays paused until `resume`."""
        self._engine.start()
        self._engine.pause()
        for _ in range(self._concurrency):
            self._submit()

    def _submit(self) -> None:
        number = self._next
        self._next += 1
        self._engine.submit(
            f"rollout-{number}",
            self._prompts[number % len(self._prompts)],
            max_new_tokens=self._output_tokens,
            on_output=self._on_output,
        )

    def _on_output(self, output: Output) -> None:
        self._tokens += 1
        if output.is_finished():
            if output.error is not None:
                self._failures.append(output.error)
            elif self._engine.is_accepting:
                self._submit()


_WORKER: Final = 0
# No version ever comes, so one batch has all there is. A turn that looks stalled in a pause stays:
# there is no other worker to go to.
_SCHEDULER: Final = SchedulerSettings(max_staleness=0, batch_trajectories=1_000_000)
# Whoever counts tokens between two moments misses at most what was said in so long.
_FLUSH_MS: Final = 5.0
# What the scheduler believes of its only worker decides nothing.
_PREFILL_TOKENS_PER_S: Final = 1000.0
_DECODE_STEP_MS: Final = 10.0


class TurnFeeder(RolloutLoad):
    """Keeps trajectories of environments going on an engine, some of them in tools.

    Args:
        engine: built with `EngineConfig(sampling=True)` and not started.
        kind: borrowed if it is rose's borrower, whose turns come back when serving takes memory.
        loop: of the trajectories; more in flight than `seats`, or the engine waits for tools.
        wait_s: `(trajectory, turn)` to how long a tool takes.
        seats: most turns at once.
        seed: of tasks and sampling.
        clock: where time comes from.

    Raises:
        InvalidArgument: the engine does not sample, or is of another kind.
    """

    def __init__(
        self,
        engine: Engine,
        kind: WorkerKind,
        *,
        loop: LoopSettings,
        wait_s: Callable[[int, int], float],
        seats: int,
        seed: int,
        clock: Clock,
    ) -> None:
        super().__init__(engine)
        self._seats = seats
        self._tokens = 0
        self._loop = RolloutThread(
            loop,
            scheduler=_SCHEDULER,
            seed=seed,
            wait_s=wait_s,
            on_finished=_let_go,
            clock=clock,
        )
        self._worker = EngineWorker(
            engine, _WORKER, kind, self._hear, flush_ms=_FLUSH_MS, ttl_ms=0.0
        )

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._tokens

    @property
    def failures(self) -> Sequence[str]:
        """Why there are no more turns, if so."""
        found = list(super().failures)
        if self._loop.error is not None:
            found.append(str(self._loop.error))
        if dropped := self._loop.counts().dropped:
            found.append(f"the scheduler gave {dropped} trajectories up")
        return found

    def start(self) -> None:
        """Start the loop and the engine; it stays paused until `resume`."""
        self._loop.start()  # First: the engine's first step reports its lease.
        self._engine.start()
        self._engine.pause()  # Before any turn can come.
        can = Capabilities(self._seats, _PREFILL_TOKENS_PER_S, _DECODE_STEP_MS)
        self._loop.join(self._worker, can)
        self._worker.grant()

    def stop(self) -> None:
        """End the loop, and let the engine run, so that it can be stopped."""
        self._loop.stop()
        super().stop()

    def _hear(self, event: WorkerEvent) -> None:
        """Count what was said; in the engine's thread."""
        if isinstance(event, TurnOutput):
            self._tokens += len(event.tokens)
        self._loop.hear(event)


def _let_go(_trajectory: Trajectory) -> None:
    """Nobody learns from it."""
