"""Steps that serving's idle engine runs only to be measured."""

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rose.engines.transformers.outputs import Output
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.executor import ServingLane
from rose.thread import Thread
from rose.units import NS_PER_MS

if TYPE_CHECKING:  # The engine owns its prober.
    from rose.engines.transformers.engine import Engine

# Interval at which the thread checks for a due probe: short, because collecting evidence takes
# seconds.
_LOOK_S: Final = 0.02
# A prefill chunk counts as full from this share of `step_tokens` on (csrc/slo/latency_model.cpp).
_FULL_SHARE: Final = 0.75
# Decode steps of a probe that measures decode steps. With fewer, the probe would spend more time on
# its prompt, which no certificate needs, than on decode steps.
_DECODE_STEPS: Final = 16


class Prober:
    """Runs steps of the shapes that certificates need evidence for, as requests without an owner.

    A probe has as many tokens as the longest prompt that serving accepts. Its own prompt is random,
    in chunks that are full except the last. It generates one token, or more to measure decode
    steps. The lane does not count a probe as a request. A probe shares no cache, and is cancelled
    at the first step boundary after a request has arrived.

    Life: made → (`start` → `stop`)*. Call `warm_up` between `start` and `stop`.
    """

    def __init__(self, engine: "Engine", lane: ServingLane) -> None:
        """Probe `engine`, whose steps `lane` protects."""
        self._engine = engine
        self._lane = lane
        self._clock = engine.processor.clock
        self._vocabulary = int(engine.manager.model.config.get_text_config().vocab_size)
        self._rng = random.Random(0)
        self._one = threading.Lock()  # Held by the probing thread.
        self._ended = threading.Condition()  # Guards `names` and `_failures`.
        self._failures: list[Exception] = []
        # Running probes; the engine's loop cancels them when a request arrives.
        self.names: set[str] = set()
        self._probes = 0
        self._stop = threading.Event()
        self._thread: Thread | None = None

    # ---- in the background ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that runs a probe whenever the lane asks for one."""
        self._stop.clear()
        self._lane.begin_probing()
        self._thread = Thread(self._run, name="rose-prober", on_failure=self._lane.safety.report)
        self._thread.start()

    def stop(self) -> None:
        """End a running probe, and join the thread. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._lane.safety:  # A failure in this block ends lending, and nothing else.
            while not self._stop.wait(_LOOK_S):
                if not self._engine.is_accepting or self._engine.is_paused:
                    continue
                with self._one:
                    batch = None if self._engine.has_requests else self._lane.probe_due()
                    if batch is not None:
                        self._probe(decode_steps=_DECODE_STEPS if batch.decode_sequences else 0)

    # ---- before the first request ---------------------------------------------------------------

    def warm_up(
        self, *, timeout_ms: float, on_progress: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Probe until there is evidence for both step shapes. For any thread but the engine's.

        Args:
            timeout_ms: longest duration.
            on_progress: called with the number of runs done, and the number of runs needed as far
                as it is known by then.

        Raises:
            InvalidArgument: the engine's steps are smaller than the lane's step_tokens.
            DeadlineExceeded: there is not enough evidence yet; measurements are kept.
            Unavailable: the engine is stopping, or a probe failed.
        """
        engine_tokens = int(self._engine.processor.cache.max_batch_tokens)
        if engine_tokens < _FULL_SHARE * self._lane.limits.step_tokens:
            raise InvalidArgument(
                f"max_batch_tokens of the engine is {engine_tokens}, too small to measure full "
                f"chunks of its lane's step_tokens, {self._lane.limits.step_tokens}: set both to "
                "the same number"
            )
        deadline_ns = self._clock.now_ns() + int(timeout_ms * NS_PER_MS)
        done = 0
        with self._one:
            while missing := self._missing():
                on_progress(done, done + sum(missing.values()))
                if self._clock.now_ns() >= deadline_ns:
                    raise DeadlineExceeded(
                        f"the warm-up did not finish within {timeout_ms:g} ms: bounds still need "
                        + " and ".join(
                            f"{runs} runs of the shape '{shape}'" for shape, runs in missing.items()
                        )
                        + "; raise timeout_ms or epsilon"
                    )
                if self._stop.is_set():
                    raise Unavailable("the engine was stopped during its warm-up")
                if self._lane.has_requests or self._engine.has_requests:
                    self._stop.wait(_LOOK_S)
                    continue
                self._probe(decode_steps=missing.get("step", 0), deadline_ns=deadline_ns)
                done += sum(missing.values()) - sum(self._missing().values())
        on_progress(done, done)

    def _missing(self) -> dict[str, int]:
        return {one.shape: one.missing for one in self._lane.evidence() if one.missing > 0}

    # ---- one probe ------------------------------------------------------------------------------

    def _probe(self, *, decode_steps: int, deadline_ns: int | None = None) -> None:
        """Run one probe until it ends or is cancelled.

        Raises:
            Unavailable: the engine is stopping, or the probe failed.
        """
        prompts, new_tokens = self._prompts(decode_steps)
        names = [f"rose-probe-{self._probes + one}" for one in range(len(prompts))]
        self._probes += len(names)
        self._failures.clear()
        self.names.update(names)
        try:
            for name, prompt in zip(names, prompts, strict=True):
                self._engine.processor.cache.keep_private(name)
                self._engine.submit(
                    name, prompt, max_new_tokens=new_tokens, on_output=self._on_output
                )
            self._wait(deadline_ns)
        finally:
            self.names.clear()
        for failure in self._failures:
            raise Unavailable(f"a probe failed: {failure}") from failure

    def _prompts(self, decode_steps: int) -> tuple[list[list[int]], int]:
        """Return prompts that together fill a step, and how many tokens to generate for each."""
        count, prompt_tokens, new_tokens = self._lane.limits.probe_size(
            decode_steps, self._engine.processor.cache.holds_tokens
        )
        return [
            [self._rng.randrange(self._vocabulary) for _ in range(prompt_tokens)]
            for _ in range(count)
        ], new_tokens

    def _on_output(self, output: Output) -> None:
        if not output.is_finished():
            return
        with self._ended:
            self.names.discard(output.request_id)
            if output.failure is not None and not self._engine.is_stopping:
                self._failures.append(output.failure)
            self._ended.notify_all()

    def _wait(self, deadline_ns: int | None) -> None:
        """Wait for the end of every probe; a stop or the deadline cancels them."""
        with self._ended:
            while self.names and self._engine.is_running:
                is_late = deadline_ns is not None and self._clock.now_ns() >= deadline_ns
                if self._stop.is_set() or is_late:
                    for name in self.names:
                        self._engine.cancel(name)
                    return
                self._ended.wait(_LOOK_S)
