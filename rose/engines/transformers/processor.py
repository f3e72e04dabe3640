"""The step loops: serving's protected step, and the borrower's gated, abortable one.

Both run in the generation thread of a transformers manager, which calls, once per step,
`prepare_next_batch` → `_generation_step` → `update_batch`.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

import torch
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.requests import RequestState

from rose.clock import Clock
from rose.engines.torch import stream_of
from rose.engines.transformers.cache import SlabCache, VersionedCache
from rose.engines.transformers.commits import CommitQueue
from rose.engines.transformers.outputs import CallbackRouter
from rose.engines.transformers.sampling import SamplingRunner
from rose.engines.transformers.scheduler import PreemptingScheduler
from rose.errors import RoseError, StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor import Quantum, Revocation, RolloutLane, ServingLane, StepBatch

# How long the borrower sleeps at a closed gate before it looks for stop and pause requests.
_LOOK_UP_MS = 50.0
_LENDS_NO_MORE = "the device lends no more: it was closed, or rose gave back"


class LoopListener(Protocol):
    """Who follows an engine's loop. Called in the loop thread, with no lock held."""

    def at_boundary(self) -> None:
        """No step runs, and none will before this returns."""
        ...

    def after_step(self) -> None:
        """A step has ended; a borrower's quantum has not: this is time that serving granted."""
        ...

    def while_parked(self) -> None:
        """A step of the borrower has waited at a closed gate for a while; serving is at work."""
        ...

    def at_end(self, error: Exception) -> None:
        """The loop ends: it was stopped, or has failed. All requests have had their last output."""
        ...


class DeviceProcessor(ContinuousBatchProcessor):  # type: ignore[misc]  # no types in transformers
    """A stock processor that stays on the device's cores and changes weights between two steps.

    On a CPU the device is a fixed set of cores. On a GPU `cores` is None, and all of the thread's
    work goes into `stream`, copies of inputs included: nothing orders the default stream with it.
    """

    cache: VersionedCache
    output_router: CallbackRouter

    def __init__(
        self,
        *,
        clock: Clock,
        cores: frozenset[int] | None,
        is_sampling: bool = False,
        stream: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the stock processor; the thread is moved at its first step."""
        super().__init__(**kwargs)
        self.clock = clock
        self.commits = CommitQueue(clock)
        self.listener: LoopListener | None = None
        self.is_sampling = is_sampling
        if is_sampling:
            self.model_runner = SamplingRunner(
                self.output_router.sampling_of,
                logit_processor=self.logit_processor,
                cb_config=self.cb_config,
                inputs_and_outputs=self.inputs_and_outputs,
                cache=self.cache,
                do_sample=self.do_sample,
                return_logprobs=self.return_logprobs,
            )
        self.cores = cores
        self.stream = None if stream is None else stream_of(stream, kwargs["model_device"])
        if self.stream is not None:
            self.inputs_and_outputs.compute_stream = self.stream
            self.offloading_manager._compute_stream = self.stream
            # What stock code has filled so far, on whatever stream was the current one.
            self.stream.wait_stream(torch.cuda.current_stream(kwargs["model_device"]))
        self.busy_ns = 0
        self._step_began_ns = 0

    def reset(self) -> None:
        """Reset as stock does, on the processor's own stream: it fills what steps read."""
        if self.stream is None:
            super().reset()
            return
        with torch.cuda.stream(self.stream):
            super().reset()

    def prepare_next_batch(self) -> bool:
        """Take in what came, once, then prepare a batch if there is work.

        Stock code takes in and prepares in one go; apart, a paused engine is in no step, and a
        request that lands in between waits for the next turn instead of running unprotected.
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
        """Called by stock `prepare_next_batch`: the intake is done."""
        return False

    def _prepare(self) -> bool:
        """Prepare as stock does, and what its tokens will be sampled by."""
        if not super().prepare_next_batch():
            return False
        if self.is_sampling:
            batch = self.inputs_and_outputs.requests_in_batch
            self.model_runner.prepare_rows(batch, self.model_device)
        return True

    def _drop_cancelled(self) -> None:
        """Remove cancelled requests and give their owners what there is: stock says nothing."""
        for state in self.scheduler.clear_cancelled_requests():
            self.offloading_manager.free_request_cpu_cache(state)
            self.output_router.take_away(state, "the request was cancelled")

    def update_batch(self) -> None:
        """Update as stock does, then let the listener report what the step said."""
        self._update()
        self._report_step()

    def _update(self) -> None:
        """Update as stock does and count the step as busy time."""
        super().update_batch()
        self.busy_ns += self.clock.now_ns() - self._step_began_ns
        self.commits.step_ended()

    def _report_step(self) -> None:
        if self.listener is not None:
            self.listener.after_step()

    def fail_all_requests(self, error: Exception) -> None:
        """Fail what is left as stock does, when the loop ends, and say that it has ended."""
        super().fail_all_requests(error)
        if self.listener is not None:
            self.listener.at_end(error)

    # ---- commits --------------------------------------------------------------------------------

    def _is_called_away(self) -> bool:
        """Whether someone waits for the loop to stop or to pause; a commit can wait for them."""
        return self._is_stopping or bool(self.background_thread_status.is_pause_requested())

    @property
    def _is_stopping(self) -> bool:
        return bool(self.background_thread_status.local_status != BackgroundThreadStatus.DONT_STOP)

    def _run_commit(self) -> bool:
        """Run slices of the first commit until it is over; False if it has to wait."""
        while self.commits.advance():
            if self._is_called_away():
                return False
        self._settle_commit()
        return True

    def _settle_commit(self) -> None:
        if self.commits.has_committed:
            self._renew_cache()
        pending, committed = self.commits.settle(self.output_router.version)
        self.output_router.version = committed.version
        pending.on_done(committed)

    def _renew_cache(self) -> None:
        """Keep what old weights computed from the requests to come."""
        self.cache.renew()

    def abandon_commits(self) -> None:
        """Bring back what is half done, and end what waits; only when the loop is over."""
        while not self.commits.is_empty:
            self.commits.abandon()
            self._settle_commit()


class ServingProcessor(DeviceProcessor):
    """Serving's loop: every step is protected by the lane."""

    def __init__(self, lane: ServingLane, **kwargs: Any) -> None:
        """Bind the loop to `lane`."""
        super().__init__(stream=lane.stream, **kwargs)
        self.lane = lane

    def _prepare(self) -> bool:
        """Wait (bounded) until the borrower's segment has ended, then prepare."""
        step = self.lane.step()
        step.__enter__()
        if not super()._prepare():
            step.__exit__(None, None, None)
            return False
        io = self.inputs_and_outputs
        decoding = sum(future.query_length == 1 for future in io.requests_in_batch)
        step.batch = StepBatch(
            decode_sequences=decoding,
            context_tokens=sum(future.state.current_len() for future in io.requests_in_batch),
            prefill_tokens=int(io.total_seqlen_q) - decoding,
        )
        self._step = step
        # The batch has its blocks: what is left must still do for what could come.
        self.lane.recheck()
        return True

    def update_batch(self) -> None:
        """Update, let the lane learn how long the step took, and offer what is free."""
        super().update_batch()
        self._step.__exit__(None, None, None)
        if not self.scheduler.active_requests:
            self.cache.pool.try_to_free_sectors()
            self.lane.settle()


class RolloutProcessor(DeviceProcessor):
    """The borrower's loop: a step runs under a quantum, pins its slabs, and can be aborted.

    `lock` guards the books (scheduler, cache, pool): the loop thread holds it while it prepares and
    updates, never in the forward pass or a slice of a commit, so serving can take slabs while a
    step is parked or weights are half changed.

    With a listener, requests whose memory serving takes are ended, and their owners told; without
    one they are requeued here.
    """

    scheduler: PreemptingScheduler
    cache: SlabCache

    def __init__(self, lane: RolloutLane, wake: threading.Event, **kwargs: Any) -> None:
        """Bind the loop to `lane`; `wake` ends the manager's wait for work."""
        super().__init__(stream=lane.stream, **kwargs)
        self.lane = lane
        self.wake = wake
        self.lock = threading.Lock()
        self.aborted_steps = 0
        # How often slabs had to leave: serving is short of memory, or could be.
        self.pressures = 0
        # How often serving offered slabs that it does not need.
        self.rooms = 0
        self._evicted: deque[RequestState] = deque()
        self._quantum: Quantum | None = None
        self._pin: int | None = None
        self._in_flight: frozenset[str] = frozenset()
        self._was_aborted = False

    # ---- the loop thread ------------------------------------------------------------------------

    def prepare_next_batch(self) -> bool:
        """Prepare as any loop; first the owners of evicted requests are told.

        Raises:
            Unavailable: as `_ask_quantum`, and for an idle borrower that someone listens to.
        """
        self.deliver_evicted()
        if self.listener is not None and self.lane.is_closed:
            raise Unavailable(_LENDS_NO_MORE)
        return super().prepare_next_batch()

    def _ask_quantum(self) -> Quantum | None:
        """Wait for a quantum for a while, with the slabs emptied that are leaving.

        Raises:
            Unavailable: there will be no quantum any more; the manager then fails all requests.
        """
        with self.lock:
            # A lease that ran out, or slabs that were late: nobody asked this thread, so it looks.
            self._evacuate(self.lane.leaving())
        match self.lane.try_step(timeout_ms=_LOOK_UP_MS):
            case Refusal(reason=reason):
                if reason is Reason.CLOSED:
                    raise Unavailable(_LENDS_NO_MORE)
                self.wake.set()  # Look for a stop or a pause, then back to the gate at once.
                return None
            case quantum:
                return quantum

    def _prepare(self) -> bool:
        """Wait for a quantum, then prepare a batch and pin the slabs it touches."""
        self._quantum = self._ask_quantum()
        if self._quantum is None:
            return False
        is_ready = False
        try:
            with self.lock:
                is_ready = super()._prepare()
                if is_ready:
                    self._pin_batch()
        finally:
            if not is_ready:
                self._end_quantum()
        return is_ready

    def _drop_cancelled(self) -> None:
        with self.lock:
            super()._drop_cancelled()

    def _run_commit(self) -> bool:
        """Run slices in one quantum, with a gate between two; an abort only ends the quantum."""
        quantum = self._ask_quantum()
        if quantum is None:
            return False
        is_over = False
        with quantum, suppress(StepAborted):
            is_over = not self.commits.advance()
            while not is_over and not self._is_called_away():
                self.lane.gate()
                is_over = not self.commits.advance()
            if is_over:
                self._settle_commit()  # In time that serving granted, like the slices.
        if not is_over:
            self.wake.set()  # Back for the next quantum at once.
        return is_over

    def _renew_cache(self) -> None:
        with self.lock:
            super()._renew_cache()

    def deliver_evicted(self) -> None:
        """Tell the owners of requests that lost their memory; in the loop thread."""
        while self._evicted:
            self.output_router.take_away(self._evicted.popleft(), "serving took its memory back")

    def while_parked(self) -> None:
        """Let the listener know that a step waits at its gate; called by the lane.

        Raises:
            StepAborted: the engine is to stop, and serving may keep the gate closed for long. On a
                GPU the stream could still be at work, so there the step waits.
        """
        if self.listener is not None:
            self.deliver_evicted()
            self.listener.while_parked()
        if self.stream is None and self._is_stopping:
            raise StepAborted("the engine stops")

    def fail_all_requests(self, error: Exception) -> None:
        """Tell the owners of evicted requests first: they did not fail."""
        self.deliver_evicted()
        super().fail_all_requests(error)

    def _pin_batch(self) -> None:
        batch = self.inputs_and_outputs.requests_in_batch
        self._in_flight = frozenset(future.state.request_id for future in batch)
        sectors = {s for request in self._in_flight for s in self.cache.sectors_of(request)}
        self._pin = self.lane.pin(sectors)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _generation_step(self, model: torch.nn.Module) -> None:
        is_ended = False
        try:
            self.lane.gate()  # Between the batch's preparation and the model.
            io = self.inputs_and_outputs
            inputs = io.get_model_kwargs(use_padding=self.model_runner.pad_inputs)
            self.model_runner.compute_batch(model, inputs)
            self.lane.finish()  # Between the model and the books.
            io.retrieve_device_outputs()
            is_ended = True
        except StepAborted:
            self._was_aborted = is_ended = True
        finally:
            if not is_ended:
                self._drop_step()

    def _drop_step(self) -> None:
        """End a step that failed: its slabs must not stay pinned when nobody will end it."""
        if self.stream is not None:
            with suppress(StepAborted, RoseError):
                self.lane.finish()
        self._in_flight = frozenset()
        self._unpin()
        self._end_quantum()

    def _unpin(self) -> None:
        if self._pin is not None:
            self.lane.unpin(self._pin)
            self._pin = None

    def update_batch(self) -> None:
        """Update or roll back, unpin, and empty the slabs that serving is waiting for."""
        with self.lock:
            if self._was_aborted:
                self._was_aborted = False
                self.aborted_steps += 1
                self.scheduler.roll_back()
                self.commits.step_ended()
            else:
                self._update()
            self._in_flight = frozenset()
            self._unpin()
            self._evacuate(self.lane.leaving())
        self._report_step()
        self._end_quantum()

    def _end_quantum(self) -> None:
        if self._quantum is not None:
            self._quantum.__exit__(None, None, None)
            self._quantum = None

    # ---- any thread -----------------------------------------------------------------------------

    def give_up_slabs(self, revocation: Revocation) -> None:
        """Choose slabs for `revocation` and empty those that no step in flight needs.

        Called by serving's thread. What is pinned leaves when the step ends or is aborted.
        """
        if not self.lock.acquire(timeout=revocation.remaining_s()):
            return
        try:
            revocation.begin(self._cheapest_slabs(revocation.slabs))
            self._evacuate(self.lane.leaving())
        finally:
            self.lock.release()

    def note_room(self) -> None:
        """Look at once whether more memory can be had; called by serving's thread."""
        self.rooms += 1
        self.wake.set()

    def _slabs_of(self, request_id: str) -> frozenset[int]:
        slab_of = self.lane.kv.allocator.slab_of
        return frozenset(slab_of(sector) for sector in self.cache.sectors_of(request_id))

    def _cheapest_slabs(self, count: int) -> list[int]:
        """Pick slabs greedily: unpinned, then few new victims, then little progress lost."""
        length = {name: state.current_len() for name, state in self._active().items()}
        users: dict[int, set[str]] = {slab: set() for slab in self.lane.slabs()}
        for request_id in length:
            for slab in self._slabs_of(request_id) & users.keys():
                users[slab].add(request_id)
        victims: set[str] = set()
        chosen: list[int] = []

        def cost(slab: int) -> tuple[bool, int, int]:
            fresh = users[slab] - victims
            return bool(fresh & self._in_flight), len(fresh), sum(length[name] for name in fresh)

        while users and len(chosen) < count:
            slab = min(users, key=cost)
            victims |= users.pop(slab)
            chosen.append(slab)
        return chosen

    def _active(self) -> dict[str, Any]:
        return dict(self.scheduler.active_requests)

    def _evacuate(self, leaving: frozenset[int]) -> None:
        """Preempt, at the token, every request outside the batch in flight with KV in `leaving`."""
        if not leaving:
            return
        self.pressures += 1
        for request_id, state in self._active().items():
            if request_id in self._in_flight or not self._slabs_of(request_id) & leaving:
                continue
            if self.listener is None:
                self.scheduler.preempt(state)
            else:
                self.scheduler.evict(state)
                self._evicted.append(state)  # This may be serving's thread: it tells nobody.
        self.cache.drop_cached_in(leaving)
        self.cache.pool.try_to_free_sectors()
