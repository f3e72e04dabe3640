"""Rollout loads beside serving: generations, turns of trajectories, or a whole RL loop."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.engines.transformers import Engine, EngineWorker, LiveWeights, Output
from rose.errors import DeadlineExceeded
from rose.scheduler import Capabilities, SchedulerSettings
from rose.scheduler.worker import TurnOutput, WorkerEvent, WorkerKind
from rose_lab.demo.record import RlLoopRecord
from rose_lab.demo.rl.rl_loop import BORROWED, RlLoop
from rose_lab.demo.rl.rollouts import RolloutThread
from rose_lab.demo.rl.settings import RlLoopSettings, RolloutLimits
from rose_lab.demo.rl.trajectory import Trajectory
from rose_lab.demo.settings import ROLLOUTS


class RolloutLoad(ABC):
    """Rollouts of one arm on an engine; they run between `resume` and `pause`.

    Args:
        engine: engine of the rollouts; `start` starts the engine, and the engine's owner stops it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens generated on the device so far."""

    @property
    def failures(self) -> Sequence[str]:
        """Errors; any of them ends the run."""
        return [] if self._engine.error is None else [str(self._engine.error)]

    @abstractmethod
    def start(self) -> None:
        """Start threads and engine; no rollout runs before `resume`."""

    def resume(self) -> None:
        """Let rollouts run."""
        self._engine.resume()

    def pause(self) -> None:
        """Pause rollouts at a step boundary, and wait until they are paused; they keep their KV."""
        self._engine.pause()

    def stop(self) -> None:
        """Undo `start`, and resume the engine so that it can be stopped."""
        if self._engine.is_running:
            self._engine.resume()


_PROMPT_TOKENS: Final = 64
_OUTPUT_TOKENS: Final = 128


class RolloutFeeder(RolloutLoad):
    """Keeps a fixed number of generations running on a borrower, from a fixed set of prompts."""

    def __init__(self, engine: Engine, *, vocabulary: int, seed: int) -> None:
        """Draw the prompts from token ids below `vocabulary`."""
        super().__init__(engine)
        rng = np.random.default_rng(seed)
        self._tokens = 0
        self._failures: list[str] = []
        self._prompts = rng.integers(vocabulary, size=(4 * ROLLOUTS, _PROMPT_TOKENS)).tolist()
        self._next = 0

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._tokens

    @property
    def failures(self) -> Sequence[str]:
        """Errors of generations and of the engine."""
        return [*self._failures, *super().failures]

    def start(self) -> None:
        """Start the engine and submit generations; the engine stays paused until `resume`."""
        self._engine.start()
        self._engine.pause()
        for _ in range(ROLLOUTS):
            self._submit()

    def _submit(self) -> None:
        number = self._next
        self._next += 1
        self._engine.submit(
            f"rollout-{number}",
            self._prompts[number % len(self._prompts)],
            max_new_tokens=_OUTPUT_TOKENS,
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
# No version is published, so one batch holds all trajectories. A turn that stalls in a pause cannot
# move to another worker, since there is none.
_SCHEDULER: Final = SchedulerSettings(max_staleness=0, batch_trajectories=1_000_000)
# Reporting interval of tokens, which bounds the error of token counts.
_FLUSH_MS: Final = 5.0
# Assumed speed of the only worker; it does not affect placement.
_PREFILL_TOKENS_PER_S: Final = 1000.0
_DECODE_STEP_MS: Final = 10.0


class TurnFeeder(RolloutLoad):
    """Keeps trajectories with environments and tools running on an engine.

    Args:
        engine: built with `EngineConfig(sampling=True)` and not started.
        kind: BORROWED for rose's borrower, which returns its turns when serving takes memory;
            DEDICATED for any other engine.
        rollouts: trajectory settings; `in_flight` should exceed `seats` to cover tool waits.
        wait_s: maps `(trajectory, turn)` to the tool's duration in seconds.
        seats: maximum concurrent turns.
        seed: seed of tasks and sampling.
        clock: time source.

    Raises:
        InvalidArgument: the engine does not sample, or does not match `kind`.
    """

    def __init__(
        self,
        engine: Engine,
        kind: WorkerKind,
        *,
        rollouts: RolloutLimits,
        wait_s: Callable[[int, int], float],
        seats: int,
        seed: int,
        clock: Clock,
    ) -> None:
        super().__init__(engine)
        self._seats = seats
        self._tokens = 0
        self._rollouts = RolloutThread(
            rollouts,
            scheduler=_SCHEDULER,
            seed=seed,
            wait_s=wait_s,
            on_finished=_let_go,
            clock=clock,
        )
        self._worker = EngineWorker(
            engine, _WORKER, kind, self._receive, flush_ms=_FLUSH_MS, ttl_ms=0.0
        )

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._tokens

    @property
    def failures(self) -> Sequence[str]:
        """Errors of engine and loop, and dropped trajectories."""
        found = list(super().failures)
        if self._rollouts.error is not None:
            found.append(str(self._rollouts.error))
        if dropped := self._rollouts.counts().dropped:
            found.append(f"the scheduler dropped {dropped} trajectories")
        return found

    def start(self) -> None:
        """Start the loop and the engine, which stays paused until `resume`."""
        self._rollouts.start()  # Started before the engine, whose first step reports a grant.
        self._engine.start()
        self._engine.pause()  # Paused before any turn can arrive.
        can = Capabilities(self._seats, _PREFILL_TOKENS_PER_S, _DECODE_STEP_MS)
        self._rollouts.join(self._worker, can)
        self._worker.grant()

    def stop(self) -> None:
        """Stop the loop, and resume the engine so that it can be stopped."""
        self._rollouts.stop()
        super().stop()

    def _receive(self, event: WorkerEvent) -> None:
        """Count generated tokens; runs in the engine's thread."""
        if isinstance(event, TurnOutput):
            self._tokens += len(event.tokens)
        self._rollouts.receive(event)


def _let_go(_trajectory: Trajectory) -> None:
    """Discard the trajectory, since no trainer runs."""


_REVOKED_S: Final = 20.0
_LOOK_S: Final = 0.005
# Usual share of idle time on a half-busy device; the scheduler's first estimate.
_SHARE: Final = 0.4


class RlLoopLoad(RolloutLoad):
    """Rollouts of an RL loop with environments, a trainer and a dedicated worker.

    Between `resume` and `pause` the borrowed worker has a capacity grant and takes turns; otherwise
    the dedicated worker runs alone.

    Args:
        engine: the borrower's engine, built with sampling and not started.
        weights: weights of the engine's model.
        settings: settings of the RL loop.
        wait_s: maps `(trajectory, turn)` to the tool's duration in seconds.
        clock: time source.
    """

    def __init__(
        self,
        engine: Engine,
        weights: LiveWeights,
        settings: RlLoopSettings,
        *,
        wait_s: Callable[[int, int], float],
        clock: Clock,
    ) -> None:
        super().__init__(engine)
        self.rl_loop = RlLoop(settings, wait_s=wait_s, clock=clock)
        self._weights = weights
        self._clock = clock
        self._began_s = 0.0
        self._worker = EngineWorker(
            engine, BORROWED, WorkerKind.BORROWED, self.rl_loop.rollouts.receive
        )

    @property
    def tokens(self) -> int:
        """Tokens generated by the borrowed worker."""
        return self.rl_loop.history.tokens(WorkerKind.BORROWED)

    @property
    def failures(self) -> Sequence[str]:
        """Errors of the RL loop and the engine."""
        failure = self.rl_loop.failure()
        return [*([] if failure is None else [failure]), *super().failures]

    def start(self) -> None:
        """Start the programs and the engine; the borrowed worker waits for `resume`."""
        self.rl_loop.start()
        self._engine.start()
        self.rl_loop.add_borrowed(self._worker, self._weights, seats=ROLLOUTS, share=_SHARE)
        self._began_s = self.rl_loop.history.now_s()

    def resume(self) -> None:
        """Let the borrowed worker take turns."""
        self._worker.grant()

    def pause(self) -> None:
        """Recall every turn from the borrowed worker, with its tokens.

        Raises:
            DeadlineExceeded: the worker did not return its turns in time.
        """
        self._worker.revoke()
        waited_s = 0.0
        while self.rl_loop.history.is_granted and self._engine.is_running:
            if waited_s > _REVOKED_S:
                raise DeadlineExceeded(
                    f"the borrowed worker did not return its turns within {_REVOKED_S:g} s"
                )
            self._clock.sleep(_LOOK_S)
            waited_s += _LOOK_S

    def stop(self) -> None:
        """Stop the programs and the loop; the engine's owner stops the engine.

        A program that does not end in time becomes an incident of the report.
        """
        try:
            self.rl_loop.stop()
        except DeadlineExceeded as error:
            self.rl_loop.history.incident(str(error))

    def record(self) -> RlLoopRecord:
        """Return the record of the RL loop; exact after `stop`."""
        rl_loop, history, handoff = self.rl_loop, self.rl_loop.history, self.rl_loop.handoff
        turns = history.turns()
        last = {(turn.trajectory, turn.turn): turn.worker for turn in turns}
        finishing = Counter(last.values())
        taken = {(one.worker, one.version) for one in history.commits if one.is_match}
        committed = Counter(worker for worker, _ in taken)
        return RlLoopRecord(
            versions=history.versions,
            turns=tuple(sorted(turns, key=lambda turn: turn.start_s)),
            trajectories=replace(
                rl_loop.rollouts.counts(),
                lost=rl_loop.lost(),
                stale=handoff.status.dropped_stale,
                turns_borrowed=finishing[WorkerKind.BORROWED.value],
                turns_dedicated=finishing[WorkerKind.DEDICATED.value],
                passed_over=handoff.passed_over,
            ),
            staleness=tuple(handoff.staleness.elements()),
            spans=history.spans(),
            incidents=history.incidents,
            measured_s=history.now_s() - self._began_s,
            published=handoff.published,
            committed_borrowed=committed[WorkerKind.BORROWED.value],
            committed_dedicated=committed[WorkerKind.DEDICATED.value],
            sent=(handoff.sent_bytes, handoff.dense_bytes) if handoff.dense_bytes else None,
            relayed=rl_loop.relayed.sums(),
        )
