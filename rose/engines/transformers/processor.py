"""The step loops: serving's protected step, and the borrower's gated, abortable one.

Both run in the generation thread of a transformers manager, which calls, once per step,
`prepare_next_batch` → `_generation_step` → `update_batch`.
"""

import os
import threading
from contextlib import suppress
from typing import Any

import torch
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

from rose.clock import Clock
from rose.engines.torch import stream_of
from rose.engines.transformers.cache import SlabCache
from rose.engines.transformers.scheduler import PreemptingScheduler
from rose.errors import RoseError, StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor import Quantum, Revocation, RolloutLane, ServingLane, StepBatch

# How long the borrower sleeps at a closed gate before it looks for stop and pause requests.
_LOOK_UP_MS = 50.0


class DeviceProcessor(ContinuousBatchProcessor):  # type: ignore[misc]  # no types in transformers
    """A stock processor whose thread stays on the device's cores and whose busy time is counted.

    On a CPU the device is a fixed set of cores. On a GPU `cores` is None, and all of the thread's
    work goes into `stream`, copies of inputs included: nothing orders the default stream with it.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        cores: frozenset[int] | None,
        stream: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the stock processor; the thread is moved at its first step."""
        super().__init__(**kwargs)
        self.clock = clock
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
        if super()._update_tp_group_state():
            return False
        self._drop_cancelled()
        if not self.scheduler.has_pending_requests():
            return False
        self._step_began_ns = self.clock.now_ns()
        return self._prepare()

    def _update_tp_group_state(self) -> bool:
        """Called by stock `prepare_next_batch`: the intake is done."""
        return False

    def _prepare(self) -> bool:
        """Prepare as stock does."""
        return bool(super().prepare_next_batch())

    def _drop_cancelled(self) -> None:
        """Remove cancelled requests and give their owners what there is: stock says nothing."""
        for state in self.scheduler.clear_cancelled_requests():
            self.offloading_manager.free_request_cpu_cache(state)
            self.output_router.fail_and_deliver(state, Unavailable("the request was cancelled"))

    def update_batch(self) -> None:
        """Update as stock does and count the step as busy time."""
        super().update_batch()
        self.busy_ns += self.clock.now_ns() - self._step_began_ns


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
    updates, never in the forward pass, so serving can take slabs while a step is parked.
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
        self._quantum: Quantum | None = None
        self._pin: int | None = None
        self._in_flight: frozenset[str] = frozenset()
        self._was_aborted = False

    # ---- the loop thread ------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """Wait for a quantum, then prepare a batch and pin the slabs it touches.

        Raises:
            Unavailable: there will be no quantum any more; the manager then fails all requests.
        """
        with self.lock:
            # A lease that ran out, or slabs that were late: nobody asked this thread, so it looks.
            self._evacuate(self.lane.leaving())
        match self.lane.try_step(timeout_ms=_LOOK_UP_MS):
            case Refusal(reason=reason):
                if reason is Reason.CLOSED:
                    raise Unavailable("the device lends no more: it was closed, or rose gave back")
                self.wake.set()  # Look for a stop or a pause, then back to the gate at once.
                return False
            case quantum:
                self._quantum = quantum
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
            else:
                super().update_batch()
            self._in_flight = frozenset()
            self._unpin()
            self._evacuate(self.lane.leaving())
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
        for request_id, state in self._active().items():
            if request_id not in self._in_flight and self._slabs_of(request_id) & leaving:
                self.scheduler.preempt(state)
        self.cache.drop_cached_in(leaving)
        self.cache.pool.try_to_free_sectors()
