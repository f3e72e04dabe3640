"""vLLM's scheduler in the borrower's lane: revoked slabs cost its requests KV, but no tokens."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from rose.engines.victims import Progress, order_of_loss
from rose.engines.vllm.kv_slots import LeasedKVCacheManager
from rose.engines.vllm.seams import pool_of
from rose.executor import Notice, RolloutLane


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A planned step: its pin, its requests, and the ids of the blocks that it writes."""

    pin: int
    requests: frozenset[str]
    written: set[int]


class RolloutScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not followed
    """A `Scheduler` on borrowed slabs.

    A step pins the blocks of its requests from `schedule` to `forward_ended`, since sampling reads
    no KV, or to `step_aborted` after a stop at its gate. When slabs are revoked, the requests with
    blocks in them are preempted as in vLLM: they are queued again in front, with all their tokens.
    A request that is preempted while its token is sampled still gets this token.

    vLLM calls the scheduler from one thread, and rose calls `give_up_slabs` from another; `_books`
    serialises the two.

    Args:
        lane: lane of the borrower.
        parts: arguments of vLLM's constructor.
    """

    running: list[Request]
    kv_cache_manager: LeasedKVCacheManager

    def __init__(self, lane: RolloutLane, **parts: Any) -> None:
        """Build vLLM's scheduler over `lane`, and handle its revocations from now on."""
        self._books = threading.RLock()  # Guards vLLM's state, and the steps in flight.
        self._in_flight: dict[int, _InFlight] = {}  # By the plan's `id()`.
        self.preempted_tokens = 0
        with pool_of(lane):
            super().__init__(**parts)
        self._lend_from(lane)

    def _lend_from(self, lane: RolloutLane) -> None:
        self.lane = lane
        lane.on_revoke = self.give_up_slabs

    def _use(self, lane: RolloutLane) -> None:
        """Move to another lane. No request may hold a block of the old lane."""
        with pool_of(lane):
            self.kv_cache_manager = self.kv_cache_manager.over_another_pool()
        self._lend_from(lane)

    # ---- vLLM's thread --------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request."""
        with self._books:
            super().add_request(request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests for a caller, such as a client that disconnects."""
        with self._books:
            ended: list[Request] = super().finish_requests(request_ids, finished_status)
            return ended

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all prefixes, for example after a change of weights."""
        with self._books:
            return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan a step and pin the blocks that it reads and writes."""
        with self._books, self.lane.planning() as plan:
            self._evacuate(plan.leaving)
            output = super().schedule(throttle_prefills)
            blocks = self._blocks_of(output.num_scheduled_tokens)
            if blocks:
                written = self._written_by(output.num_scheduled_tokens)
                requests = frozenset(output.num_scheduled_tokens)
                self._in_flight[id(output)] = _InFlight(self.lane.pin(blocks), requests, written)
                plan.order = self._cheapest_first(self.lane.slabs())
            return output

    def forward_ended(self, scheduler_output: SchedulerOutput) -> None:
        """Unpin a step's blocks, because its model has run. Its sampling may take long."""
        with self._books:
            self._unpin(scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        """Accept the tokens of a step, and unpin its blocks if they are still pinned."""
        with self._books:
            try:
                outputs: dict[int, Any] = super().update_from_output(
                    scheduler_output, model_runner_output
                )
            finally:
                self._unpin(scheduler_output)
            self._evacuate(self.lane.leaving())
            return outputs

    def step_aborted(self, scheduler_output: SchedulerOutput) -> None:
        """Undo a step that stopped at its gate, and so left its KV half written.

        The step's requests are preempted, with the tokens they had before the step. vLLM caches a
        block when it plans the step that fills the block, so blocks that this step writes are
        removed from the cache. A step that was planned on top of this one must be aborted too.
        """
        with self._books:
            step = self._in_flight.get(id(scheduler_output))
            if step is not None:
                self.kv_cache_manager.evict_blocks(step.written)
            for name in scheduler_output.num_scheduled_tokens:
                request = self.requests.get(name)
                if request is None:
                    continue
                if request.status == RequestStatus.RUNNING:
                    self._preempt(request, drop_stale_output=True)
                request.drop_stale_output = True
            self.update_from_output(scheduler_output, EMPTY_MODEL_RUNNER_OUTPUT)

    def _unpin(self, scheduler_output: SchedulerOutput) -> None:
        step = self._in_flight.pop(id(scheduler_output), None)
        if step is not None:
            self.lane.unpin(step.pin)

    # ---- the thread of revocations --------------------------------------------------------------

    def give_up_slabs(self, revocation: Notice) -> None:
        """Empty the revoked slabs; pinned slabs leave when the step ends.

        If the scheduler's lock is not free before the deadline, nothing happens.
        """
        if not self._books.acquire(timeout=revocation.remaining_s()):
            return
        try:
            self._evacuate(self.lane.leaving())
        finally:
            self._books.release()

    def _blocks_of(self, request_ids: Iterable[str]) -> set[int]:
        blocks: set[int] = set()
        for request_id in request_ids:
            blocks.update(*self.kv_cache_manager.get_block_ids(request_id))
        return blocks.difference(self.lane.kv.null_blocks)

    def _written_by(self, scheduled_tokens: dict[str, int]) -> set[int]:
        """Return the blocks that a newly planned step writes."""
        written: set[int] = set()
        managers = self.kv_cache_manager.coordinator.single_type_managers
        for request_id, tokens in scheduled_tokens.items():
            first = self.requests[request_id].num_computed_tokens - tokens
            groups = self.kv_cache_manager.get_block_ids(request_id)
            for group, manager in zip(groups, managers, strict=True):
                written.update(group[first // manager.block_size :])
        return written.difference(self.lane.kv.null_blocks)

    def _slabs_of(self, request: Request) -> frozenset[int]:
        blocks = list(self._blocks_of([request.request_id]))
        return frozenset(self.lane.kv.allocator.slabs_of(blocks))

    def _cheapest_first(self, slabs: list[int]) -> list[int]:
        """Return the slabs on loan, the cheapest to lose first."""
        in_flight = frozenset[str]().union(*(one.requests for one in self._in_flight.values()))
        requests = [
            Progress(
                blocks=self._blocks_of([one.request_id]),
                tokens=one.num_computed_tokens,
                age=-float(one.arrival_time),
                is_in_flight=one.request_id in in_flight,
            )
            for one in self.running
        ]
        return order_of_loss(slabs, requests, self.lane.kv.allocator.slabs_of)

    def _evacuate(self, leaving: frozenset[int]) -> None:
        """Preempt the requests with blocks in the slabs `leaving`, the newest request first."""
        if not leaving:
            return
        for request in reversed(self.running):
            if not leaving.isdisjoint(self._slabs_of(request)):
                # With asynchronous scheduling, the request could run again before the token of its
                # last step arrives. That token is then dropped and computed again.
                self._preempt(
                    request, drop_stale_output=bool(self.scheduler_config.async_scheduling)
                )

    def _preempt(self, request: Request, *, drop_stale_output: bool) -> None:
        self.preempted_tokens += request.num_computed_tokens
        # A new list does not disturb iterations over the old one.
        self.running = [other for other in self.running if other is not request]
        # Given None as the time, vLLM reads its own clock.
        self._preempt_request(request, None, drop_stale_output=drop_stale_output)
        # The request has left the worker's batch. Even if the next step runs it, vLLM must send the
        # worker all of its tokens again.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
