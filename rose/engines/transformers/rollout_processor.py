"""The borrower's loop: gated, abortable steps under quanta, and commits between them."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from transformers.generation.continuous_batching.requests import RequestState

from rose.engines.launches import LaunchMeasurement
from rose.engines.shut_out import ShutOut
from rose.engines.transformers.cache import SlabCache
from rose.engines.transformers.processor import DeviceProcessor
from rose.engines.transformers.scheduler import PreemptingScheduler
from rose.engines.victims import Progress, order_of_loss
from rose.engines.vllm.waiting import Waits
from rose.errors import RoseError, StepAborted, Unavailable
from rose.events import Reason, Refusal
from rose.executor import Notice, Quantum, RolloutLane

# Interval at which a borrower at a closed gate checks for stop and pause requests.
_LOOK_UP_MS = 50.0
_LOG = logging.getLogger(__name__)
_LENDS_NO_MORE = "the device has stopped lending: it was closed, or rose gave everything back"


class RolloutProcessor(DeviceProcessor):
    """The borrower's loop: a step runs under a quantum, pins its slabs, and can be aborted.

    `lock` guards scheduler, cache and pool: the loop thread holds it while it prepares and updates,
    but not in the forward pass or a slice of a commit, so serving can take slabs while a step is
    parked or weights are half changed.

    When serving takes a request's memory, the request is requeued. With a listener it ends instead,
    and its owner is informed.
    """

    scheduler: PreemptingScheduler
    cache: SlabCache

    def __init__(
        self, lane: RolloutLane, wake: threading.Event, *, move_bytes: int = 0, **kwargs: Any
    ) -> None:
        """Bind the loop to `lane`; `wake` ends the manager's wait for work.

        Between two steps the loop copies at most `move_bytes` of KV, so that slabs become empty.
        """
        super().__init__(stream=lane.stream, **kwargs)
        self.lane = lane
        self.wake = wake
        self._launches = LaunchMeasurement(lane)
        self.lock = threading.Lock()
        self._move_bytes = move_bytes
        self.moved_bytes = 0
        self.aborted_steps = 0
        # Number of times that slabs were emptied, mostly because serving is or could be short of
        # memory. After a change `LaneCapacity` reads the remaining capacity.
        self.pressures = 0
        # Number of times that serving offered slabs that it does not need.
        self.rooms = 0
        self._evicted: deque[RequestState] = deque()
        self._quantum: Quantum | None = None
        self._pin: int | None = None
        self._in_flight: frozenset[str] = frozenset()
        self._was_aborted = False
        self._shut_out = ShutOut()
        self.waits = Waits(self.clock, term=lambda: None, report=_LOG.warning)
        self._passes = 0

    # ---- the loop thread ------------------------------------------------------------------------

    def prepare_next_batch(self) -> bool:
        """Inform the owners of evicted requests, then prepare a batch as every loop does.

        Raises:
            Unavailable: the device has stopped lending. If the borrower is idle and has no
                listener, nothing is raised.
        """
        self.deliver_evicted()
        if self.listener is not None and self.lane.is_closed:
            raise Unavailable(_LENDS_NO_MORE)
        if not self._has_work():
            if self.is_shut_out:
                self._ask_to_run()
            else:
                self.waits.idle()
        return super().prepare_next_batch()

    @property
    def is_shut_out(self) -> bool:
        """True if quanta were refused for so long that the turns should run on other workers.

        False again after the next quantum.
        """
        return self.listener is not None and self._shut_out.is_over_bound

    def _has_work(self) -> bool:
        return not self.commits.is_empty or bool(self.scheduler.has_pending_requests())

    def _ask_to_run(self) -> None:
        """Request a quantum without work: a granted one shows that turns can run again."""
        quantum = self._ask_quantum()
        if quantum is not None:
            with quantum:
                pass

    def _note_wait(self, why: Callable[[], Reason]) -> None:
        if self.lane.passes != self._passes:
            self._passes = self.lane.passes
            self._shut_out.passed()
        self._shut_out.refused(self.clock.now_ns(), why)
        self.waits.refused(why())

    def _ask_quantum(self) -> Quantum | None:
        """Empty slabs under revocation, then wait a short time for a quantum; None if refused.

        Raises:
            Unavailable: there will be no more quanta; the manager then fails all requests.
        """
        with self.lock:
            # This thread is not informed of expired leases and overdue slabs, so it checks.
            self._evacuate(self.lane.leaving())
        match self.lane.try_step(timeout_ms=_LOOK_UP_MS):
            case Refusal(reason=reason):
                if reason is Reason.CLOSED:
                    raise Unavailable(_LENDS_NO_MORE)
                self._note_wait(lambda: reason)
                self.wake.set()  # Check for a stop or a pause, then return to the gate at once.
                return None
            case quantum:
                self._shut_out.passed()
                self.waits.stepped()
                return quantum

    def _prepare(self) -> bool:
        """Wait for a quantum, then prepare a batch and pin its slabs."""
        self._quantum = self._ask_quantum()
        if self._quantum is None:
            return False
        is_ready = False
        try:
            with self.lock, self.lane.planning() as plan:
                self._evacuate(plan.leaving)
                is_ready = super()._prepare()
                if is_ready:
                    self._pin_batch()
                    plan.order = self._cheapest_first(self.lane.slabs())
        finally:
            if not is_ready:
                self._unpin()
                self._end_quantum()
        return is_ready

    def _drain(self) -> None:
        """Wait until the stream has no work of this step."""
        if self.stream is not None:
            with suppress(StepAborted, RoseError):
                self.lane.finish()

    # ---- the loop thread: a step ----------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        with self.lock:
            super()._drop_cancelled()

    def _run_commit(self) -> bool:
        """Run slices in one quantum, with gates between them; an abort ends only the quantum."""
        quantum = self._ask_quantum()
        if quantum is None:
            return False
        is_over = False
        with quantum, suppress(StepAborted):
            try:
                is_over = not self.commits.advance()
                while not is_over and not self._is_called_away():
                    # On host and device: a copy waits for its stream, which must not be parked.
                    self.lane.gate()
                    self.lane.settle()
                    is_over = not self.commits.advance()
            finally:
                self._drain()
            if is_over:
                self._settle_commit()  # Within the quantum, like the slices.
        if not is_over:
            self.wake.set()  # Request the next quantum at once.
        return is_over

    def _renew_cache(self, version: int) -> None:
        with self.lock:
            super()._renew_cache(version)

    def _meet_new_weights(self) -> list[RequestState]:
        with self.lock:
            return super()._meet_new_weights()

    def deliver_evicted(self) -> None:
        """Inform the owners of evicted requests, in the loop thread."""
        while self._evicted:
            self.output_router.take_away(self._evicted.popleft(), "serving took its memory back")

    def while_parked(self) -> None:
        """Inform the listener that a step waits at its gate; called by the lane.

        On a GPU segments of the step may already be in the stream behind the closed gate, and would
        have to run before an abort. So the step is aborted here on a CPU only.

        Raises:
            StepAborted: the engine stops or pauses, or the gate was closed for too long.
        """
        self._note_wait(lambda: self.lane.why_refused().reason)
        if self.listener is not None:
            self.deliver_evicted()
            self.listener.while_parked()
        if self.stream is None and (self._is_called_away() or self.is_shut_out):
            raise StepAborted("the engine stops or pauses, or its gate was closed for too long")

    def fail_all_requests(self, error: Exception) -> None:
        """Inform the owners of evicted requests first: they did not fail."""
        self.deliver_evicted()
        super().fail_all_requests(error)

    def _pin_batch(self) -> None:
        batch = self.inputs_and_outputs.requests_in_batch
        self._in_flight = frozenset(future.state.request_id for future in batch)
        self._pin = self.lane.pin(self.cache.blocks_of(sorted(self._in_flight)))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _run_step(self, model: torch.nn.Module) -> None:
        is_ended = False
        try:
            self.lane.gate()  # Between the batch's preparation and the model.
            io = self.inputs_and_outputs
            inputs = io.get_model_kwargs(use_padding=self.model_runner.pad_inputs)
            with self._launches.of_step():
                self.model_runner.compute_batch(model, inputs)
            self.lane.finish()  # Between the model and the bookkeeping.
            io.retrieve_device_outputs()
            is_ended = True
        except StepAborted:
            self._was_aborted = is_ended = True
        finally:
            if not is_ended:
                self._drop_step()

    def _drop_step(self) -> None:
        """End a failed step: its slabs must not stay pinned."""
        self._drain()
        self._in_flight = frozenset()
        self._unpin()
        self._end_quantum()

    def _unpin(self) -> None:
        if self._pin is not None:
            self.lane.unpin(self._pin)
            self._pin = None

    def update_batch(self) -> None:
        """Accept or roll back the step, unpin its slabs, and empty slabs under revocation."""
        try:
            with self.lock:
                self._settle_step()
            self._report_step()
        finally:
            self._end_quantum()

    def _settle_step(self) -> None:
        if self._was_aborted:
            self._was_aborted = False
            self.aborted_steps += 1
            self.scheduler.roll_back()
            self.commits.step_ended()
        else:
            is_sound = self._fault is None
            self._update()
            if not is_sound:  # Its quantum is over, so nothing is moved.
                self._evacuate(self.lane.leaving())
                return
        self._in_flight = frozenset()
        self._unpin()
        leaving = self.lane.leaving()
        self._move_together(leaving)
        self._evacuate(leaving)

    def _move_together(self, leaving: frozenset[int]) -> None:
        """Move KV so that slabs become empty and no KV is lost; within the step's quantum.

        KV is moved out of slabs under revocation. If there are no such slabs, KV is compacted when
        blocks are so scattered that serving would have to stop many requests for little memory.
        """
        if self._move_bytes <= 0 or not (leaving or self.cache.is_sparse):
            return
        self.cache.drop_cached_in(leaving)
        self.moved_bytes += self.cache.move(
            sorted(leaving) or None,
            bytes_max=self._move_bytes,
            settle=self.lane.await_stream,
        )

    def _end_quantum(self) -> None:
        if self._quantum is not None:
            self._quantum.__exit__(None, None, None)
            self._quantum = None

    # ---- any thread -----------------------------------------------------------------------------

    def give_up_slabs(self, revocation: Notice) -> None:
        """Empty the revoked slabs that no step in flight needs.

        Called by serving's thread. Pinned slabs leave when the step ends or is aborted.
        """
        if not self.lock.acquire(timeout=revocation.remaining_s()):
            return
        try:
            self._evacuate(self.lane.leaving())
        finally:
            self.lock.release()

    def note_room(self) -> None:
        """Wake the loop, because serving offers memory; called by serving's thread."""
        self.rooms += 1
        self.wake.set()

    def _cheapest_first(self, slabs: list[int]) -> list[int]:
        """Return the slabs on loan, the cheapest to lose first."""
        requests = [
            Progress(
                blocks=self.cache.blocks_of([name]),
                tokens=state.current_len(),
                age=-float(state.created_time),
                is_in_flight=name in self._in_flight,
            )
            for name, state in self._active().items()
        ]
        return order_of_loss(slabs, requests, self.lane.kv.allocator.slabs_of)

    def _active(self) -> dict[str, Any]:
        return dict(self.scheduler.active_requests)

    def _evacuate(self, leaving: frozenset[int]) -> None:
        """Empty the slabs `leaving`, except blocks of the batch in flight.

        Requests with KV in these slabs are queued again with all their tokens or, with a listener,
        evicted. Cached prefixes in these slabs are given up too.
        """
        if not leaving:
            return
        self.pressures += 1
        for request_id, state in self._active().items():
            if request_id in self._in_flight or not self.cache.slabs_of(request_id) & leaving:
                continue
            if self.listener is None:
                self.scheduler.preempt(state)
            else:
                self.scheduler.evict(state)
                # The loop thread informs the owner later: this may be serving's thread.
                self._evicted.append(state)
        self.cache.drop_cached_in(leaving)
        self.cache.pool.try_to_free_sectors()
