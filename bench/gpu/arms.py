"""The arms of the end-to-end suite: ways to share a device, from not at all to rose."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.gpu.decoder import Step
from bench.gpu.engines import Nobody, Place, Watched
from rose.errors import StepAborted, Unavailable
from rose.executor import SLO, CoServing, KVGeometry, Quantum, RolloutLane, StepBatch

# Only numbers of blocks matter to rose here: the models have separate KV memory.
_KV: Final = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)
_POOL_BYTES: Final = 64 << 20
_NAP_S: Final = 0.0005
_PARK_MS: Final = 5.0

OneStep = Callable[[Step], bool]


@dataclass(frozen=True, slots=True)
class Promise:
    """Serving's parameters: its targets, its largest step and its largest prompt."""

    slo: SLO
    step_tokens: int
    request_tokens: int


Opened = Callable[[Any, Promise], AbstractContextManager["Sharing"]]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The set-up of an arm: the streams of both engines, serving's observer, and the way to run a
    step.

    Args:
        one_step: runs a step of the rollouts; None without rollouts.
        close: releases a thread that waits in `one_step`.
    """

    serving: Place
    rollout: Place
    watched: Watched
    one_step: OneStep | None
    close: Callable[[], None] = lambda: None


class Streams:
    """Streams of a GPU for the arms without rose; none on a CPU."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._kept: list[Any] = []

    def place(self, *, highest: bool) -> Place:
        if self._device.type == "cpu":
            return Place()
        from rose._core import CudaDevice, CudaStream
        from rose.engines.torch import stream_of

        made = CudaStream.create(CudaDevice.open(self._device.index or 0), highest=highest)
        self._kept.append(made)
        return Place(stream_of(made.handle, self._device))


def run_through(place: Place) -> OneStep:
    """Return a function that runs steps without stopping."""

    def one_step(step: Step) -> bool:
        for part in step.parts:
            part.replay()
        place.wait()
        return True

    return one_step


class Quiet(Nobody):
    """Knows whether serving has a request: the flag of the host window."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_live` and its event in `is_quiet`
        self._live: set[str] = set()
        self.is_quiet = threading.Event()
        self.is_quiet.set()

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        del prompt_tokens
        with self._lock:
            self._live.add(request_id)
            self.is_quiet.clear()

    def finished(self, request_id: str) -> None:
        with self._lock:
            self._live.discard(request_id)
            if not self._live:
                self.is_quiet.set()


def window_of_one(place: Place, quiet: Quiet, closed: threading.Event) -> OneStep:
    """Return a function that starts a part only while serving is idle, and waits for its end."""

    def one_step(step: Step) -> bool:
        for part in step.parts:
            while not quiet.is_quiet.wait(_NAP_S):
                if closed.is_set():
                    return False
            part.replay()
            place.wait()
        return True

    return one_step


def gated(lane: RolloutLane, closed: threading.Event) -> OneStep:
    """Return a function that runs steps granted by rose, with a gate between two parts."""
    from rose.engines.torch import gate_graphs

    lane.set_launches(1)  # each part is one graph

    def one_step(step: Step) -> bool:
        answer = lane.try_step(timeout_ms=_PARK_MS)
        if not isinstance(answer, Quantum):
            closed.wait(_NAP_S)
            return False
        run = gate_graphs(lane, step.parts)
        with answer:
            try:
                run()
                lane.finish()
            except StepAborted:
                return False
            except Unavailable:
                if not closed.is_set():
                    raise
                return False
        return True

    return one_step


class LaneWatched:
    """Forwards to a serving lane."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        self._lane.arrived(request_id, prompt_tokens=prompt_tokens)

    def emitted_all(self, request_ids: Sequence[str]) -> None:
        self._lane.emitted_all(request_ids)

    def finished(self, request_id: str) -> None:
        self._lane.finished(request_id)

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        self._lane.warm_up(run)

    def step(self, batch: StepBatch) -> AbstractContextManager[Any]:
        step: AbstractContextManager[Any] = self._lane.step(batch)
        return step


# ---- the arms


def alone(streams: Streams, _promise: Promise) -> Sharing:
    place = streams.place(highest=True)
    return Sharing(place, place, Nobody(), None)


def share_all(streams: Streams, _promise: Promise) -> Sharing:
    serving, rollout = (streams.place(highest=False) for _ in range(2))
    return Sharing(serving, rollout, Nobody(), run_through(rollout))


def priority(streams: Streams, _promise: Promise) -> Sharing:
    serving, rollout = streams.place(highest=True), streams.place(highest=False)
    return Sharing(serving, rollout, Nobody(), run_through(rollout))


def host_window(streams: Streams, _promise: Promise) -> Sharing:
    serving, rollout = streams.place(highest=True), streams.place(highest=False)
    quiet, closed = Quiet(), threading.Event()
    one_step = window_of_one(rollout, quiet, closed)
    return Sharing(serving, rollout, quiet, one_step, closed.set)


def rose(slowdown: float) -> Opened:
    @contextmanager
    def opened(device: Any, promise: Promise) -> Iterator[Sharing]:
        from rose.engines.torch import stream_of

        with ExitStack() as parts:
            shared = CoServing.open(str(device), pool_bytes=_POOL_BYTES)
            parts.callback(shared.close)
            serving = shared.serving(
                _KV,
                slo=replace(promise.slo, slowdown=slowdown),
                step_tokens=promise.step_tokens,
                request_tokens=promise.request_tokens,
            )
            rollout = shared.rollout(_KV, limit_bytes=_POOL_BYTES)
            closed = threading.Event()

            def place(handle: int | None) -> Place:
                return Place(None if handle is None else stream_of(handle, device))

            def close() -> None:
                closed.set()
                shared.close()

            yield Sharing(
                place(serving.stream),
                place(rollout.stream),
                LaneWatched(serving),
                gated(rollout, closed),
                close,
            )

    return opened


def plain(
    make: Callable[[Streams, Promise], Sharing],
) -> Opened:
    @contextmanager
    def opened(device: Any, promise: Promise) -> Iterator[Sharing]:
        streams = Streams(device)
        yield make(streams, promise)

    return opened


ARMS: Final = {
    "share_all": plain(share_all),
    "priority": plain(priority),
    "host_window": plain(host_window),
    "rose_idle": rose(0.0),
    "rose_slack": rose(math.inf),
}
ALONE: Final = plain(alone)
