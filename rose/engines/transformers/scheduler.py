"""FIFO scheduling whose steps can be undone, also on a shrinking pool."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import FIFOScheduler


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's state before its batch was prepared; a rollback restores this state."""

    state: RequestState
    position: int
    tokens: list[int]
    was_decoding: bool


class UndoingScheduler(FIFOScheduler):  # type: ignore[misc]  # transformers ships no types
    """A FIFO scheduler that can undo the newest batch, and can run a part of its requests apart."""

    active_requests: dict[str, RequestState]
    waiting_requests: dict[str, RequestState]
    waiting_requests_order: deque[str]

    def reset(self) -> None:
        """Forget all requests."""
        super().reset()
        self.scheduled: list[Scheduled] = []

    def schedule_batch(
        self, token_budget: int, cache_budget: int
    ) -> tuple[list[FutureRequestState] | None, bool, int, int]:
        """Schedule as stock code does, and record what `roll_back` needs."""
        self.scheduled = []
        was_decoding = self._decoding()
        batch, fast, query, read = super().schedule_batch(token_budget, cache_budget)
        self._record(batch, was_decoding)
        return batch, fast, query, read

    def _decoding(self) -> set[str]:
        return {
            request_id
            for request_id, state in self.active_requests.items()
            if state.status == RequestStatus.DECODING
        }

    def _record(self, batch: list[FutureRequestState] | None, was_decoding: set[str]) -> None:
        self.scheduled = [
            Scheduled(
                state=future.state,
                position=future.state.position_offset,
                tokens=list(future.state.tokens_to_process),
                was_decoding=future.state.request_id in was_decoding,
            )
            for future in batch or ()
        ]

    def roll_back(self) -> None:
        """Undo `schedule_batch` after an aborted step, whose KV will be overwritten."""
        for scheduled in self.scheduled:
            state = scheduled.state
            if len(scheduled.tokens) > 1 and not self.cache.is_append_only:
                # The layers that ran have overwritten KV of the oldest tokens in the window's ring.
                self._start_again(state)
                continue
            state.position_offset = scheduled.position
            if scheduled.was_decoding:
                state.tokens_to_process = scheduled.tokens
            else:
                state.remaining_prefill_tokens = scheduled.tokens + state.remaining_prefill_tokens
                state.tokens_to_process = []
                state._status = RequestStatus.PREFILLING
        self.scheduled = []
        self._requests_to_fork.clear()

    def _start_again(self, state: RequestState) -> None:
        requeue(self, state, no_cache=True)

    @contextmanager
    def only(self, names: frozenset[str] | None) -> Iterator[None]:
        """Hide all other requests from `schedule_batch` during the context; None hides none."""
        if names is None:
            yield
            return
        active, waiting = self.active_requests, self.waiting_requests
        order = self.waiting_requests_order
        self.active_requests = {name: active[name] for name in active if name in names}
        self.waiting_requests = {name: waiting[name] for name in waiting if name in names}
        self.waiting_requests_order = deque(name for name in order if name in names)
        try:
            yield
        finally:
            hidden = {name: active[name] for name in active if name not in names}
            every = {**hidden, **self.active_requests}
            in_order = dict.fromkeys((*active, *self.active_requests))
            self.active_requests = {name: every[name] for name in in_order if name in every}
            asleep = {name: waiting[name] for name in waiting if name not in names}
            self.waiting_requests = {**self.waiting_requests, **asleep}
            places = dict.fromkeys((*self.waiting_requests_order, *order))
            self.waiting_requests_order = deque(
                name for name in places if name in self.waiting_requests
            )

    def drop(self, request_id: str) -> RequestState | None:
        """Forget a request and its KV; return its state, None if it is unknown."""
        state = self.active_requests.get(request_id)
        if state is not None:
            forget(self, state, no_cache=True)
            return state
        state = self.waiting_requests.pop(request_id, None)
        if state is not None:
            self.waiting_requests_order.remove(request_id)
        return state


class PreemptingScheduler(UndoingScheduler):
    """A FIFO scheduler that requeues requests with all their tokens when memory is short.

    In a borrower, methods that touch the cache run under `RolloutProcessor.lock`; new requests are
    queued without this lock.
    """

    def reset(self) -> None:
        """Forget all requests."""
        super().reset()
        self.preempted_tokens = 0

    def schedule_batch(
        self, token_budget: int, cache_budget: int
    ) -> tuple[list[FutureRequestState], bool, int, int]:
        """Schedule as FIFO does; if nothing fits, preempt the youngest request, and finally idle.

        If nothing fits, stock code returns None, and a processor that cannot offload then fails the
        loop and every request.
        """
        was_decoding = self._decoding()
        while True:
            batch, fast, query, read = FIFOScheduler.schedule_batch(
                self, token_budget, cache_budget
            )
            if batch is not None or not self._make_room():
                break
        # Stock code would offload the requests in this list. Here they keep their blocks, and come
        # first in the next batch.
        self.starved_requests: list[tuple[RequestState, int]] = []
        self._record(batch, was_decoding)
        return batch or [], fast, query, read

    def _try_to_meet_safety_margin(self) -> bool:
        """Provide the free margin for new requests: first by a loan, then by dropping old cache.

        Stock code measures the margin against a pool that never grows, and drops all of the cache.
        """
        self.cache.pool.try_to_free_sectors()
        return bool(self.cache.make_free(self.safety_margin))

    def _make_room(self) -> bool:
        if self.cache.evict_cached_blocks():
            self.cache.pool.try_to_free_sectors()
            return True
        if len(self.active_requests) < 2:
            return False
        youngest = max(self.active_requests.values(), key=lambda state: state.created_time)
        self.preempt(youngest, no_cache=True)
        self.block_new_requests = True
        self.cache.pool.try_to_free_sectors()
        return True

    def preempt(self, state: RequestState, *, no_cache: bool = False) -> None:
        """Free the blocks of `state` and requeue it in front with all its tokens.

        Only for a request that is not in the batch in flight.

        Args:
            state: active request.
            no_cache: whether to free full blocks too, instead of keeping them as prefix cache.
        """
        self.preempted_tokens += state.current_len()
        requeue(self, state, no_cache=no_cache)

    def evict(self, state: RequestState) -> None:
        """Free the blocks of `state` and forget it; its owner still has to be informed.

        Only for a request that is not in the batch in flight.
        """
        forget(self, state)

    def _start_again(self, state: RequestState) -> None:
        self.preempt(state, no_cache=True)


def requeue(scheduler: FIFOScheduler, state: RequestState, *, no_cache: bool) -> None:
    """Free the blocks of an active request, and queue it in front with all its tokens."""
    scheduler.cache.free_blocks(state.request_id, no_cache=no_cache)
    scheduler.active_requests.pop(state.request_id)
    again = state.create_equivalent_initial_request()
    # Stock code resets these two, which would falsify latencies.
    again.created_time, again._timestamps = state.created_time, state._timestamps
    # The private field: the property's setter would record the end of the request.
    state._status = RequestStatus.FINISHED
    scheduler.waiting_requests[again.request_id] = again
    scheduler.waiting_requests_order.appendleft(again.request_id)
    if not scheduler.active_requests:
        scheduler.block_new_requests = False


def forget(scheduler: FIFOScheduler, state: RequestState, *, no_cache: bool = False) -> None:
    """Free the blocks of an active request and forget it; its owner still has to be informed."""
    scheduler.cache.free_blocks(state.request_id, no_cache=no_cache)
    scheduler.active_requests.pop(state.request_id)
    if not scheduler.active_requests:
        scheduler.block_new_requests = False


def youngest_first(scheduler: FIFOScheduler) -> list[RequestState]:
    """Return the active requests in the order in which to queue them in front: oldest last."""
    active = list(scheduler.active_requests.values())
    return sorted(active, key=lambda state: float(state.created_time), reverse=True)
