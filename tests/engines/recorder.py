"""What a worker reports, kept and checked while it comes."""

import threading
from collections.abc import Callable

from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)
from tests.engines.pair import WAIT_S


def turn(trajectory: int, prompt: list[int], new_tokens: int, **changes) -> TurnRequest:
    """A request of turn 0 under lease 1."""
    fields = {
        "trajectory": trajectory,
        "turn": 0,
        "grant_epoch": 1,
        "prompt": tuple(prompt),
        "first_token": 0,
        "max_new_tokens": new_tokens,
        "stop_tokens": (),
        "temperature": 1.0,
        "seed": 1000 + trajectory,
    }
    return TurnRequest(**{**fields, **changes})


class Recorder:
    """The scheduler's side of one worker. What must hold of every event is asserted in `faults`."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []
        self.faults: list[str] = []
        self.threads: set[int] = set()
        self._said: dict[tuple[int, int, int], list[TurnOutput]] = {}
        self._epoch = 0
        self._changed = threading.Condition()

    def __call__(self, event: WorkerEvent) -> None:
        with self._changed:
            self.threads.add(threading.get_ident())
            self._check(event)
            self.events.append(event)
            self._changed.notify_all()

    def _check(self, event: WorkerEvent) -> None:
        if any(isinstance(one, WorkerLost) for one in self.events):
            self.faults.append(f"after the worker was lost: {event}")
        if isinstance(event, GrantChanged):
            if event.grant_epoch < self._epoch:
                self.faults.append(f"the epoch went down: {event}")
            self._epoch = event.grant_epoch
        if isinstance(event, TurnOutput):
            self._check_output(event)

    def _check_output(self, output: TurnOutput) -> None:
        said = self._said.setdefault((output.trajectory, output.turn, output.grant_epoch), [])
        if said and said[-1].end is not None:
            said.clear()  # it was started again
        if said and output.first_token != said[-1].first_token + len(said[-1].tokens):
            self.faults.append(f"tokens missing or twice: {output}")
        if not len(output.tokens) == len(output.logprobs) == len(output.versions):
            self.faults.append(f"not as many logprobs or versions as tokens: {output}")
        if not output.tokens and output.end is None:
            self.faults.append(f"nothing is said: {output}")
        said.append(output)

    # ---- looking ------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), (
                f"no {what}; the last events: {self.events[-5:]}"
            )

    def of(self, kind: type) -> list:
        return [event for event in list(self.events) if isinstance(event, kind)]

    @property
    def leases(self) -> list[GrantChanged]:
        return self.of(GrantChanged)

    @property
    def commits(self) -> list[VersionCommitted]:
        return self.of(VersionCommitted)

    def outputs(self, trajectory: int) -> list[TurnOutput]:
        return [one for one in self.of(TurnOutput) if one.trajectory == trajectory]

    def ends(self, trajectory: int) -> list[TurnEnd]:
        return [one.end for one in self.outputs(trajectory) if one.end is not None]

    def tokens(self, trajectory: int) -> list[int]:
        return [token for one in self.outputs(trajectory) for token in one.tokens]

    def wait_ended(self, *trajectories: int, times: int = 1) -> None:
        self.wait_for(
            lambda: all(len(self.ends(one)) >= times for one in trajectories),
            f"end of {trajectories}",
        )

    def wait_tokens(self, trajectory: int, count: int) -> None:
        self.wait_for(lambda: len(self.tokens(trajectory)) >= count, f"{count} tokens")

    def wait_lease(self, condition: Callable[[GrantChanged], bool]) -> GrantChanged:
        self.wait_for(lambda: any(condition(lease) for lease in self.leases), "such lease")
        return next(lease for lease in reversed(self.leases) if condition(lease))
