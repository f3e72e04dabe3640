"""Keeps one engine running in this process; a borrower attaches again whenever serving is back."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rose.clock import Clock
from rose.closing import Closing
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable, sentence
from rose.node.assembly import LoadedModel, RunningEngine
from rose.node.hosted_worker import HostedWorker
from rose.scheduler.worker import WorkerKind
from rose.thread import Thread
from rose.units import NS_PER_S

_ATTACH_AGAIN_S: Final = 0.5
_LOOK_S: Final = 0.5  # interval at which the borrower's waits are reported
NUMBER: Final = 0  # number of the worker in its own process
_NO_WAIT: Final[Mapping[str, Any]] = {"reason": None}
_REMEDY: Final = "start the serving engine at the same socket; requests wait"


class EngineHost(Closing):
    """Runs an engine, and the next one when it is lost.

    A dedicated engine that is lost is not replaced: its process must end. A borrower without a
    serving engine waits for one, from the start on.

    Args:
        model: model of the engines.
        worker: worker that passes turns to the present engine.
        on_ready: called when the first engine runs.
        on_wait: called with the data of the event `wait` when it changes.
        on_end: called with the reason when there will be no engine any more.
        clock: time source.

    Raises:
        InvalidArgument: the options do not suit the model or the device.
        Unavailable: a dedicated engine does not run.
    """

    def __init__(
        self,
        model: LoadedModel,
        worker: HostedWorker,
        *,
        on_ready: Callable[[], None],
        on_wait: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._clock, self._away_ns = clock, 0
        self._model, self._worker = model, worker
        self._on_ready, self._on_wait, self._on_end = on_ready, on_wait, on_end
        self._is_closing = threading.Event()
        self._news = threading.Event()  # set when the engine is lost, and by `close`
        self._lost: str | None = None
        self._told: Mapping[str, Any] = _NO_WAIT
        self._engine = self._try()
        self._thread = Thread(self._run, name="rose-engine-host", on_failure=self._failed)
        self._thread.start()

    def close(self) -> None:
        """Stop the engine."""
        self._is_closing.set()
        self._news.set()
        self._thread.join()

    def _failed(self, failure: BaseException) -> None:
        self._on_end(f"the thread of the engine has failed: {sentence(failure)}")

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        is_first = True
        while not self._is_closing.is_set():
            if self._engine is None:
                self._is_closing.wait(_ATTACH_AGAIN_S)
                self._engine = self._retried()
                continue
            if is_first:
                self._on_ready()
                is_first = False
            self._watch(self._engine)
            self._engine.close()
            self._engine = None
            if self._lost is None or self._is_closing.is_set():
                return
            if self._worker.kind is WorkerKind.DEDICATED:
                self._on_end(f"the engine has ended: {self._lost}")
                return
            self._wait_for_serving(self._lost)

    def _try(self) -> RunningEngine | None:
        """Start an engine; return None if no device lends now."""
        self._lost = None
        self._news.clear()
        try:
            engine = self._model.run(NUMBER, self._worker.events_of(self._note_loss))
        except (Unavailable, DeadlineExceeded) as error:
            if self._worker.kind is WorkerKind.DEDICATED:
                raise
            self._wait_for_serving(str(error))
            return None
        self._worker.use(engine.worker)
        self._tell(_NO_WAIT)
        return engine

    def _retried(self) -> RunningEngine | None:
        try:
            return self._try()
        except InvalidArgument as error:  # Another device listens at the socket now.
            self._wait_for_serving(str(error))
            return None

    def _note_loss(self, reason: str) -> None:
        self._lost = reason
        self._news.set()

    def _watch(self, engine: RunningEngine) -> None:
        """Report the waits of the engine until it is lost, or this object is closed."""
        processor = engine.engine.processor
        while not self._news.wait(_LOOK_S) and not self._is_closing.is_set():
            if isinstance(processor, RolloutProcessor):
                self._tell(processor.waits.event())

    def _wait_for_serving(self, reason: str) -> None:
        now_ns = self._clock.now_ns()
        if self._told.get("remedy") != _REMEDY:
            self._away_ns = now_ns
        waited_s = (now_ns - self._away_ns) // NS_PER_S  # whole seconds: an event a second
        self._tell({"reason": reason, "waited_s": float(waited_s), "remedy": _REMEDY})

    def _tell(self, wait: Mapping[str, Any]) -> None:
        if wait != self._told:
            self._told = wait
            self._on_wait(wait)
