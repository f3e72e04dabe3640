"""Worker and scheduler of `rose vllm rollout`: vLLM's own classes, on borrowed memory and time."""

import threading
from contextlib import suppress
from typing import Any, Final

import torch
from vllm.config import CompilationMode
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from rose.clock import BootClock
from rose.engines.vllm.borrowed_side import BorrowedSide
from rose.engines.vllm.guard import check_version
from rose.engines.vllm.join import join, joined
from rose.engines.vllm.rollout_scheduler import RolloutScheduler
from rose.engines.vllm.settings import RolloutSettings, check_config, read_settings
from rose.engines.vllm.tensors import pool_for_kv
from rose.engines.vllm.waiting import LONG_NS
from rose.engines.vllm.weights import RoseWeights
from rose.errors import RoseError, StepAborted, Unavailable
from rose.events import Reason
from rose.executor import Quantum, Refusal, RolloutLane
from rose.memory import KVSpace

# Longest wait for a quantum; then vLLM's loop handles its other events.
_LOOK_UP_MS: Final = 50.0
# Pause after a refusal or an empty plan, because serving must answer each attempt.
_RETRY_S: Final = 0.02
# Pause between two attempts to attach.
_ATTACH_AGAIN_S: Final = 0.5


class AbortedStep(ModelRunnerOutput):  # type: ignore[misc]  # vLLM is not followed
    """The output of a step that stopped at its gate; it has no tokens."""


class _Quanta:
    """Runs work other than steps, such as loading weights, in quanta, without pins or undo."""

    def __init__(self, lane: RolloutLane) -> None:
        self._lane = lane
        self._quantum: Quantum | None = None
        self._pause = threading.Event()  # Never set, so each wait lasts for its timeout.

    def next(self) -> None:
        """End a segment, and wait until the next may start; if the lane is closed, do not wait."""
        if self._quantum is not None:
            try:
                self._lane.gate()
            except (StepAborted, Unavailable):
                self.end()
            else:
                return
        while self._quantum is None and not self._lane.is_closed:
            match self._lane.try_step(timeout_ms=_LOOK_UP_MS):
                case Quantum() as quantum:
                    self._quantum = quantum
                case Refusal():
                    self._pause.wait(_RETRY_S)  # While slabs are overdue, refusals come at once.

    def end(self) -> None:
        """End the last segment."""
        quantum, self._quantum = self._quantum, None
        if quantum is not None:
            quantum.__exit__(None, None, None)


class RolloutWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not followed
    """A `CPUWorker` whose KV tensors are views of serving's pool. Its steps can be aborted."""

    def determine_available_memory(self) -> int:
        """Return the limit of the loan in bytes. Nothing is allocated: the memory is serving's."""
        if self._should_warm_up_model():
            self.model_runner.warming_up_model()
        self._warm_sampler()
        return int(self.cache_config.kv_cache_memory_bytes)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _warm_sampler(self) -> None:
        """Compile vLLM's sampler before attaching: this takes seconds, and would be in a step.

        vLLM compiles functions at their first use: one when a request asks for logprobs of its
        prompt or of its output, others when a request is sampled at random.
        """
        runner, size = self.model_runner, self.model_config.get_hidden_size()
        for rows in (1, 2):  # The compiler treats one row as a special case.
            runner._dummy_sampler_run(torch.zeros(rows, size, dtype=runner.dtype))
            logits = torch.zeros(rows, self.model_config.get_vocab_size())
            tokens = torch.zeros(rows, dtype=torch.int64)
            runner.sampler.gather_logprobs(runner.sampler.compute_logprobs(logits), 1, tokens)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Attach to serving's device, and give views of its pool to the model."""
        check_version()
        check_config(self.vllm_config)
        self._settings = RolloutSettings(**read_settings(self.vllm_config.additional_config))
        with pool_for_kv(self._open):
            super().initialize_from_config(kv_cache_config)
        config = self.compilation_config
        # Compiled code calls no hooks.
        is_eager = config.mode == CompilationMode.NONE
        self._side.gate(
            self.model_runner.get_model() if is_eager else None, config.static_forward_context
        )

    def _open(self, kv_cache_config: Any) -> KVSpace:
        self._side = BorrowedSide(self._settings, kv_cache_config)
        join(self.vllm_config, self._side, scheduler=BorrowingScheduler)
        return self._side.lane.kv

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run a step in segments; an aborted step returns `AbortedStep`."""
        lane = self._side.lane
        try:
            output = super().execute_model(scheduler_output)
            if scheduler_output.total_num_scheduled_tokens > 0:
                lane.finish()
                self._side.on_forward_end(scheduler_output)
        except (StepAborted, Unavailable):
            self.model_runner.execute_model_state = None
            self._side.aborted_steps += 1
            return AbortedStep(req_ids=[], req_id_to_index={})
        return output

    def update_weights(self, update_info: Any) -> None:
        """Load weights as vLLM does; with rose's backend, stop at a gate before each tensor."""
        engine, quantum = self.weight_transfer_engine, _Quanta(self._side.lane)
        is_ours = isinstance(engine, RoseWeights)
        since_ns, before = BootClock().now_ns(), engine.loaded if is_ours else None
        if is_ours:
            engine.between = quantum.next
        try:
            super().update_weights(update_info)
        finally:
            quantum.end()
            if is_ours and (engine.loaded is not before or engine.is_half_loaded):
                self._side.weights_loaded(engine, since_ns=since_ns)

    def rose_look(self) -> None:
        """Look whether the capacity grant can be restored, between two steps.

        The server's front process calls this now and then while something is missing, since an idle
        engine would not look by itself.
        """
        self._side.on_look()

    def rose_status(self) -> dict[str, Any]:
        """Return this engine's part of `/rose/status`."""
        side = self._side
        return {
            "role": "rollout",
            "device": side.device.device_id,
            "attach": self._settings.attach,
            "gave_back": side.device.gave_back,
            "lent_bytes": 0
            if side.lane.is_closed
            else len(side.lane.slabs()) * side.lane.kv.slab_bytes,
            "limit_bytes": side.lane.slabs_max() * side.lane.kv.slab_bytes,
            "gates": "layers" if side.has_gates else "steps",
            "aborted_steps": side.aborted_steps,
            "weights": getattr(self.weight_transfer_engine, "loaded", None),
            "barred": None if side.barred is None else str(side.barred),
            **side.waits.status(),
        }

    def shutdown(self) -> None:
        """End as vLLM does, then return the slabs."""
        super().shutdown()
        side = getattr(self, "_side", None)
        if side is not None:
            side.close()


class BorrowingScheduler(RolloutScheduler):
    """The scheduler of a live borrower. Each step runs under a quantum, and can be undone."""

    def __init__(self, vllm_config: Any, **parts: Any) -> None:
        """Build vLLM's scheduler over the worker's lane."""
        self._side = joined(vllm_config, BorrowedSide)
        super().__init__(self._side.lane, vllm_config=vllm_config, **parts)
        self._side.on_forward_end = self.forward_ended
        self._side.on_look = self.look
        # Borrowed blocks hold bits of serving's model, which can be NaN in this model's dtype.
        self.needs_kv_cache_zeroing = True
        self._quantum: Quantum | None = None
        self._pause = threading.Event()  # Never set, so each wait lasts for its timeout.
        self._had_no_plan = False

    def _lend_from(self, lane: RolloutLane) -> None:
        super()._lend_from(lane)
        lane.on_look = self._parked
        lane.on_room = self._room

    def look(self) -> None:
        """Attach again, or ask for a step without work, if there are no requests that do so."""
        if self.lane.is_closed:
            self._attach_again()
        elif self._side.granting.is_shut_out and not self.has_unfinished_requests():
            match self.lane.try_step(timeout_ms=_LOOK_UP_MS):
                case Quantum() as quantum:
                    with quantum:
                        self._side.granting.passed()
        self._side.granting.look()

    def _parked(self) -> None:
        """Note that a step waits at its gate; called in the thread of the step."""

        def why() -> Reason:
            reason = self.lane.why_refused().reason
            self._side.waits.refused(reason)
            return reason

        self._side.granting.refused(why)

    def _room(self) -> None:
        """Note that the lane is closed; called by the thread of revocations."""
        if self.lane.is_closed:
            self._side.granting.look()

    def _evacuate(self, leaving: frozenset[int]) -> None:
        before = self.preempted_tokens
        super()._evacuate(leaving)
        if self.preempted_tokens > before:
            self._side.granting.squeezed()

    def step_aborted(self, scheduler_output: SchedulerOutput) -> None:
        """Undo a step that stopped at its gate, which serving's need for its slabs has caused."""
        super().step_aborted(scheduler_output)
        self._side.granting.squeezed()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Wait (bounded) for a quantum, then plan a step; without a quantum the plan is empty."""
        if not self.has_unfinished_requests():
            self._side.waits.idle()
            return super().schedule(throttle_prefills)  # This plan only reports ended requests.
        if self._had_no_plan:
            self._pause.wait(_RETRY_S)
        self._quantum = self._ask_quantum()
        if self._quantum is None:
            return SchedulerOutput.make_empty()
        is_planned = False
        self.lane.no_memory = None
        try:
            output = super().schedule(throttle_prefills)
            is_planned = output.total_num_scheduled_tokens > 0
        finally:
            self._had_no_plan = not is_planned
            if not is_planned:
                self._end_quantum()
        self._note_plan(is_planned=is_planned)
        return output

    def _note_plan(self, *, is_planned: bool) -> None:
        refusal, waits, granting = self.lane.no_memory, self._side.waits, self._side.granting
        if is_planned:
            waits.stepped()
            granting.passed()
        elif refusal is not None and self.pause_state == PauseState.UNPAUSED:
            waits.refused(refusal.reason)
            if waits.waited_ns > LONG_NS:
                granting.starved()
            granting.look()
        else:  # The requests wait for something else, such as the operator's `/resume`.
            waits.idle()

    def _ask_quantum(self) -> Quantum | None:
        """Empty the slabs under revocation, then wait up to `_LOOK_UP_MS` for a quantum."""
        if self.lane.is_closed:
            self._side.waits.refused(Reason.CLOSED)
            if not self._attach_again():
                self._pause.wait(_ATTACH_AGAIN_S)
            return None
        with self._books:
            self._evacuate(self.lane.leaving())
        match self.lane.try_step(timeout_ms=_LOOK_UP_MS):
            case Refusal(reason=reason):
                self._side.waits.refused(reason)
                self._side.granting.refused(lambda: reason)
                self._had_no_plan = True  # While slabs are overdue, refusals come at once.
                return None
            case quantum:
                return quantum

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        """Accept the tokens of a step, or undo an aborted step; then end the step's quantum."""
        try:
            if isinstance(model_runner_output, AbortedStep):
                self.step_aborted(scheduler_output)
                return {}
            return super().update_from_output(scheduler_output, model_runner_output)
        finally:
            self._end_quantum()

    def _end_quantum(self) -> None:
        quantum, self._quantum = self._quantum, None
        if quantum is not None:
            quantum.__exit__(None, None, None)

    def _attach_again(self) -> bool:
        """Free all blocks of a closed device, and try to attach again; requests wait meanwhile."""
        with self._books:
            for request in reversed(self.running):
                self._preempt(request, drop_stale_output=True)
            with suppress(RoseError):
                self._side.attach_again()
                self._use(self._side.lane)
                return True
        return False
