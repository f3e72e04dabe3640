"""The step loops: every engine's work between two steps, and serving's protected step.

Both loops run in the generation thread of a transformers manager, which calls, once per step,
`prepare_next_batch` → `_generation_step` → `update_batch`.
"""

import logging
import os
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.requests import RequestState

from rose.clock import Clock
from rose.engines.torch import stream_of
from rose.engines.transformers.cache import VersionedCache
from rose.engines.transformers.commits import CommitQueue, InFlight
from rose.engines.transformers.outputs import CallbackRouter
from rose.engines.transformers.runner import DeviceRunner
from rose.engines.transformers.sampling import SamplingRunner
from rose.engines.transformers.scheduler import (
    UndoingScheduler,
    forget,
    requeue,
    youngest_first,
)
from rose.engines.transformers.suspects import Suspects
from rose.executor import ServingLane, StepBatch

if TYPE_CHECKING:  # A worker holds an engine, which holds its processor.
    from rose.engines.transformers.worker import EngineWorker

_LOG: Final = logging.getLogger(__name__)
# Exceptions of a step that one of its requests may have caused.
_FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class DeviceProcessor(ContinuousBatchProcessor):  # type: ignore[misc]  # no types in transformers
    """A stock processor that stays on the device's cores and changes weights between two steps.

    On a CPU the device is a fixed set of cores. On a GPU `cores` is None, and all of the thread's
    work is queued on `stream`, including input copies: work on the default stream would not be in
    order with the rest.

    With a listener, a step that raises is undone, and its requests run again in smaller groups
    until the request that makes a step raise is found; that request fails alone. Without a
    listener, the exception ends the loop, as in stock code.
    """

    scheduler: UndoingScheduler
    cache: VersionedCache
    output_router: CallbackRouter

    def __init__(
        self,
        *,
        clock: Clock,
        cores: frozenset[int] | None,
        is_sampling: bool = False,
        inflight: InFlight = "keep",
        stream: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the stock processor; the loop thread moves to `cores` at the first step."""
        super().__init__(**kwargs)
        self.clock = clock
        self.commits = CommitQueue(clock)
        self.listener: EngineWorker | None = None  # Called in the loop thread, with no lock held.
        self.is_sampling = is_sampling
        self.inflight = inflight
        runner = (
            partial(SamplingRunner, self.output_router.sampling_of) if is_sampling else DeviceRunner
        )
        self.model_runner = runner(
            logit_processor=self.logit_processor,
            cb_config=self.cb_config,
            inputs_and_outputs=self.inputs_and_outputs,
            cache=self.cache,
            do_sample=self.do_sample,
            return_logprobs=self.return_logprobs,
        )
        self.output_router.matched = self.cache.matched
        if isinstance(self.model_runner, SamplingRunner):
            self.output_router.top_of = self.model_runner.top_of
        self.cores = cores
        self.stream = None if stream is None else stream_of(stream, kwargs["model_device"])
        if self.stream is not None:
            self.inputs_and_outputs.compute_stream = self.stream
            self.offloading_manager._compute_stream = self.stream
            # Wait for the fills that stock code has queued on the current stream so far.
            self.stream.wait_stream(torch.cuda.current_stream(kwargs["model_device"]))
        self.busy_ns = 0
        self._step_began_ns = 0
        self._suspects = Suspects()
        self._fault: Exception | None = None

    def reset(self) -> None:
        """Reset on the processor's own stream, because a reset fills the input tensors of steps."""
        if self.stream is None:
            super().reset()
            return
        with torch.cuda.stream(self.stream):
            super().reset()

    def prepare_next_batch(self) -> bool:
        """Process arrivals once, then prepare a batch if there is work.

        Stock code does both at once. Here they are separate, so that a paused engine is in no step,
        and a request that arrives between them waits for the next call instead of running without
        protection.
        """
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
            self.cores = None
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)
        if self.listener is not None:
            self.listener.at_boundary()
        if super()._update_tp_group_state():
            return False
        self._drop_cancelled()
        while not self.commits.is_empty:
            if not self._run_commit():
                return False
        if self.commits.is_quarantined or not self.scheduler.has_pending_requests():
            return False
        self._step_began_ns = self.clock.now_ns()
        return self._prepare()

    def _update_tp_group_state(self) -> bool:
        """Do nothing when stock `prepare_next_batch` calls this: arrivals are processed already."""
        return False

    def _prepare(self) -> bool:
        """Prepare as stock does, also the sampling parameters of the batch."""
        if self.listener is None:
            return self._prepare_batch()
        scheduler = self.scheduler
        self._suspects.keep(scheduler.active_requests.keys() | scheduler.waiting_requests.keys())
        try:
            with scheduler.only(self._suspects.group):
                is_ready = self._prepare_batch()
        except _FAULTS as error:
            if not scheduler.scheduled:
                raise
            self._undo(error)
            return False
        if not is_ready:
            self._suspects.release()
        return is_ready

    def _prepare_batch(self) -> bool:
        if not super().prepare_next_batch():
            return False
        if self.is_sampling:
            batch = self.inputs_and_outputs.requests_in_batch
            self.model_runner.prepare_rows(batch, self.model_device)
        return True

    def _drop_cancelled(self) -> None:
        """Remove cancelled requests. Unlike stock code, give their owners the output so far."""
        for state in self.scheduler.clear_cancelled_requests():
            self.offloading_manager.free_request_cpu_cache(state)
            self.output_router.take_away(state, "the request was cancelled")

    def _generation_step(self, model: torch.nn.Module) -> None:
        """Run the step; with a listener, keep an exception for `update_batch`."""
        try:
            self._run_step(model)
        except _FAULTS as error:
            if self.listener is None:
                raise
            self._fault = error

    def _run_step(self, model: torch.nn.Module) -> None:
        super()._generation_step(model)

    def update_batch(self) -> None:
        """Update as stock does, then let the listener report the step."""
        self._update()
        self._report_step()

    def _update(self) -> None:
        """Update as stock does and count the step as busy time; undo a step that has raised."""
        fault, self._fault = self._fault, None
        if fault is not None:
            self._undo(fault)
        else:
            batch = self.inputs_and_outputs.requests_in_batch
            super().update_batch()
            self._suspects.passed([future.state.request_id for future in batch])
        self.busy_ns += self.clock.now_ns() - self._step_began_ns
        self.commits.step_ended()

    def _undo(self, error: Exception) -> None:
        """Undo a batch whose step has raised; end the request that is the cause, if it is known.

        Raises:
            Exception: `error`, because the device or the engine is at fault, not a request.
        """
        self.inputs_and_outputs.requests_in_batch = []
        scheduled = [one.state for one in self.scheduler.scheduled]
        names = [state.request_id for state in scheduled]
        fresh = {state.request_id for state in scheduled if state.generated_len() == 0}
        self.scheduler.roll_back()
        guilty = self._suspects.raised(names, fresh)
        _LOG.warning(
            "a step with %d requests has raised %s: %s", len(names), type(error).__name__, error
        )
        if guilty is None:
            return
        if self._suspects.is_engine_at_fault or not self._does_device_work():
            raise error
        state = self.scheduler.drop(guilty)
        if state is not None:
            self.output_router.fail_and_deliver(state, error)

    def _does_device_work(self) -> bool:
        """Return whether the device still computes: after some errors a GPU's context is lost."""
        try:
            return float(torch.ones(1, device=self.model_device).sum()) == 1.0
        except RuntimeError:
            return False

    def _report_step(self) -> None:
        if self.listener is not None:
            self.listener.after_step()

    def fail_all_requests(self, error: Exception) -> None:
        """Fail remaining requests as stock does, when the loop ends, and inform the listener."""
        super().fail_all_requests(error)
        if self.listener is not None:
            self.listener.at_end(error)

    # ---- commits --------------------------------------------------------------------------------

    def _is_called_away(self) -> bool:
        """Return True if a stop or a pause is requested; a commit then waits."""
        return self._is_stopping or bool(self.background_thread_status.is_pause_requested())

    @property
    def _is_stopping(self) -> bool:
        return bool(self.background_thread_status.local_status != BackgroundThreadStatus.DONT_STOP)

    def _run_commit(self) -> bool:
        """Run slices of the first commit until it is over; return False if it has to wait."""
        while self.commits.advance():
            if self._is_called_away():
                return False
        self._settle_commit()
        return True

    def _settle_commit(self) -> None:
        ended: list[RequestState] = []
        has_committed = self.commits.has_committed
        if has_committed:
            ended = self._meet_new_weights()
        pending, committed = self.commits.settle(self.output_router.version)
        if has_committed:
            self._renew_cache(committed.version)
        for state in ended:  # Before the version changes: these tokens are of the old weights.
            self.output_router.take_away(state, "the weights have changed")
        self.output_router.version = committed.version
        pending.on_done(committed)

    def _renew_cache(self, version: int) -> None:
        """Hide KV of old weights from future requests."""
        self.cache.renew(version)

    def _meet_new_weights(self) -> list[RequestState]:
        """Handle running requests as `inflight` says; return the requests that end here.

        Called while no batch is in flight.
        """
        under_way = [] if self.inflight == "keep" else youngest_first(self.scheduler)
        if self.inflight == "recompute":
            for state in under_way:
                requeue(self.scheduler, state, no_cache=True)
            return []
        for state in under_way:
            forget(self.scheduler, state)
        return under_way[::-1]

    def abandon_commits(self) -> None:
        """Roll back a commit in progress, and end queued ones; only after the loop has ended."""
        while not self.commits.is_empty:
            self.commits.abandon()
            self._settle_commit()


class ServingProcessor(DeviceProcessor):
    """Serving's loop: the lane protects every step."""

    def __init__(self, lane: ServingLane, **kwargs: Any) -> None:
        super().__init__(stream=lane.stream, **kwargs)
        self.lane = lane
        # Ids of running probes, which are cancelled when any other request arrives.
        self.probes: AbstractSet[str] = frozenset()

    def _drop_cancelled(self) -> None:
        """Also drop probes after an arrival: the new request waits for one probe step at most."""
        probes = set(self.probes)
        if probes and (self.lane.has_requests or self.output_router.live.keys() - probes):
            for name in probes:
                self.scheduler.set_request_cancellation(name)
        super()._drop_cancelled()

    def _prepare(self) -> bool:
        """Wait (bounded) until the borrower's segment has ended, then prepare."""
        self._step = self.lane.step()
        self._step.__enter__()
        is_prepared = False
        try:
            is_prepared = super()._prepare()
        finally:
            if not is_prepared:
                self._step.__exit__(None, None, None)
        if is_prepared:
            self._step.commit(self._batch())
        return is_prepared

    def _batch(self) -> StepBatch:
        io = self.inputs_and_outputs
        decoding = sum(future.query_length == 1 for future in io.requests_in_batch)
        return StepBatch(
            decode_sequences=decoding,
            context_tokens=sum(future.state.current_len() for future in io.requests_in_batch),
            prefill_tokens=int(io.total_seqlen_q) - decoding,
            requests=tuple(future.state.request_id for future in io.requests_in_batch),
        )

    def fail_all_requests(self, error: Exception) -> None:
        """Release the device first, because a step in flight has failed; then fail the requests."""
        self.lane.give_step_up()
        super().fail_all_requests(error)

    def update_batch(self) -> None:
        """Update, report the step's time to the lane, and offer free slabs."""
        super().update_batch()
        self._step.__exit__(None, None, None)
        if not self.scheduler.active_requests:
            self.cache.pool.try_to_free_sectors()
            self.lane.settle()
