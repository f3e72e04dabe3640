"""vLLM's scheduler in serving's lane."""

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from rose.engines.vllm.seams import pool_of
from rose.executor import ServingLane


def with_tokens(outputs: dict[int, Any]) -> list[str]:
    """Return the ids of requests that got a token. Of a prompt's chunks only the last gives one."""
    return [
        one.request_id for client in outputs.values() for one in client.outputs if one.new_token_ids
    ]


class ServingScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not followed
    """A `Scheduler` that takes lent slabs back in the step that needs them.

    Args:
        lane: lane of serving.
        parts: arguments of vLLM's constructor.
    """

    def __init__(self, lane: ServingLane, **parts: Any) -> None:
        self.lane = lane
        with pool_of(lane):
            super().__init__(**parts)

    def add_request(self, request: Request) -> None:
        """Report a request to the lane, and queue it. A repeated report has no effect."""
        self.lane.arrived(request.request_id, prompt_tokens=request.num_prompt_tokens)
        super().add_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        """Accept a step's tokens, and offer the slabs that ended requests have freed."""
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        self._report_tokens(scheduler_output, outputs)
        if self.finished_req_ids:
            self._report_finished()
        return outputs

    def _report_tokens(self, _plan: SchedulerOutput, outputs: dict[int, Any]) -> None:
        self.lane.emitted_all(with_tokens(outputs))

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests for a caller, such as a client that disconnects."""
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        if self.finished_req_ids:
            self._report_finished()
        return ended

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all prefixes, and offer their slabs."""
        is_reset = bool(super().reset_prefix_cache(reset_running_requests, reset_connector))
        self.lane.settle()
        return is_reset

    def _report_finished(self) -> None:
        # vLLM keeps these ids until it plans the next step. The lane ignores an id that has ended.
        for request_id in self.finished_req_ids:
            self.lane.finished(request_id)
        self.lane.settle()
