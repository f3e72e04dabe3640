"""State that worker and scheduler of a borrower share."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.utils import bind_kv_cache_to_layers

from rose.clock import BootClock
from rose.engines.torch import gate_layers
from rose.engines.vllm.granting import Granting
from rose.engines.vllm.settings import RolloutSettings
from rose.engines.vllm.telling import Telling
from rose.engines.vllm.tensors import geometry_of, views_of
from rose.engines.vllm.waiting import Waits
from rose.errors import RetryLater, RoseError
from rose.executor import CoServing, RolloutLane
from rose.executor.attached import AttachedDevice
from rose.executor.messages import AskLedger
from rose.executor.observing import ask_device
from rose.units import NS_PER_MS

# Longest wait of a starting worker for a device that bars borrowers: the longest pause there is.
_PATIENCE_MS: Final = 600_000.0
# Serving's answer is only for the log.
_TERM_S: Final = 0.5
# vLLM writes the lines of its own loggers only.
_LOG: Final = init_logger("vllm.rose")


class BorrowedSide:
    """State that worker and scheduler of a borrower share: the device, its lane, and the model.

    When serving ends, the lane is closed for good. `attach_again` then attaches to the process that
    listens at the same path, and opens a new lane.
    """

    def __init__(self, settings: RolloutSettings, kv_cache_config: Any) -> None:
        """Attach to serving's device.

        Raises:
            Unavailable: no process listens at the socket, or the device has another borrower.
            InvalidArgument: the device rejects the model's KV layout.
        """
        self._settings = settings
        self._config = kv_cache_config
        self.geometry = geometry_of(kv_cache_config)
        self.aborted_steps = 0
        # Set by the scheduler; the worker calls it between the model and the sampler.
        self.on_forward_end: Callable[[SchedulerOutput], None] = lambda _plan: None
        # Set by the scheduler; the worker calls it when the front process asks for a look.
        self.on_look: Callable[[], None] = lambda: None
        self._ungate: Callable[[], None] = lambda: None
        self._model: Any = None
        self._layers: Any = None
        self._clock = BootClock()
        self.waits = Waits(self._clock, term=self._term, report=_LOG.warning)
        # The device's last rejection, if it bars borrowers, and the time of the next try.
        self.barred: RetryLater | None = None
        self._try_at_ns = 0
        self._attach(patience_ms=_PATIENCE_MS)
        self._instance = uuid4().hex
        self._version: dict[str, Any] = {"version": 0, "is_match": True, "pause_ms": 0.0}
        self._telling = Telling(Path(settings.events), self.state, on_failure=_LOG.error)
        self.granting = Granting(self.lane, self._clock, self._telling.tell)
        self._telling.start()

    def _attach(self, *, patience_ms: float) -> None:
        device = CoServing.attach(self._settings.attach)
        try:
            lane = device.rollout(
                self.geometry,
                limit_bytes=self._config.num_blocks * self.geometry.block_bytes,
                patience_ms=patience_ms,
            )
        except RoseError:
            device.close()
            raise
        self.device: AttachedDevice = device
        self.lane: RolloutLane = lane

    def state(self) -> dict[str, Any]:
        """Return the data of the events of `/rose/events`. Any thread may call it."""
        return {
            "grant": self.granting.event(),
            "version": self._version,
            "wait": self.waits.event(),
            "kv_tokens": self.granting.tokens_max,
            "instance": self._instance,
            "is_whole": self.granting.is_whole,
        }

    def weights_loaded(self, engine: Any, *, since_ns: int) -> None:
        """Report the version in the model, before a step runs with it.

        Args:
            engine: `RoseWeights` of the worker.
            since_ns: time from which no step could run.
        """
        version = self._version["version"] if engine.loaded is None else engine.loaded["version"]
        self._version = {
            "version": version,
            "is_match": not engine.is_half_loaded,
            "pause_ms": (self._clock.now_ns() - since_ns) / NS_PER_MS,
        }
        self.granting.quarantine(is_on=engine.is_half_loaded)
        self._telling.tell()

    def close(self) -> None:
        """Stop telling, and return the slabs."""
        self._telling.close()
        self.device.close()

    def _term(self) -> str | None:
        """Return the condition that serving's newest refused certificate violated."""
        with suppress(RoseError):
            _, reported = ask_device(self._settings.attach, AskLedger(), timeout_s=_TERM_S)
            return reported.binding
        return None

    @property
    def has_gates(self) -> bool:
        """True if a step can stop between layers; False if only between steps."""
        return self._model is not None

    def gate(self, model: Any, layers: Any) -> None:
        """Put gates between the decoder layers of an eager model.

        Args:
            model: model that runs the steps; None if it is compiled, because compiled code calls no
                hooks.
            layers: vLLM's attention layers by name.
        """
        self._model, self._layers = model, layers
        if model is not None:
            self._ungate()
            self._ungate = gate_layers(self.lane, model, every=1)

    def attach_again(self) -> None:
        """Replace a closed device. The scheduler must have freed all blocks of the old device.

        Does nothing before the time that the device named in its last rejection.

        Raises:
            RoseError: as in the constructor; `RetryLater` is kept in `barred`.
        """
        if self.barred is not None and self._clock.now_ns() < self._try_at_ns:
            raise self.barred
        self.device.close()
        self.barred = None
        try:
            self._attach(patience_ms=0.0)
        except RetryLater as barred:
            _LOG.warning("rose: %s; trying again then", barred)
            self.barred = barred
            self._try_at_ns = self._clock.now_ns() + int(barred.retry_after_ms * NS_PER_MS)
            raise
        bind_kv_cache_to_layers(views_of(self._config, self.lane.kv), self._layers)
        self.gate(self._model, self._layers)
        self.granting.use(self.lane)
