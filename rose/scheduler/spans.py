"""Spans of OpenTelemetry: a trace per trajectory, a span per turn. It needs the extra `tracing`.

Names follow the conventions of OpenTelemetry for generative models where there are any. All other
names begin with `rose.`.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry import propagate, trace
from typing_extensions import override

from rose.scheduler.driver_events import Asked, Begun, Ended, Entry
from rose.scheduler.driver_trajectory import Phase
from rose.scheduler.state import Gone, Outcome, RolloutsState
from rose.scheduler.turns import Sampling, TurnResult
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import TurnRequest, WorkerKind


class TurnSpans(DriverWatch):
    """Makes spans from the events that it observes.

    Args:
        provider: provider of tracers; None for the process's own.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("rose.scheduler", tracer_provider=provider)
        self._trajectories: dict[int, trace.Span] = {}
        self._turns: dict[int, trace.Span] = {}

    @override
    def opened(self, state: RolloutsState) -> None:
        """Begin new spans for trajectories of an earlier process, which left theirs unfinished."""
        for one in state.trajectories.values():
            self._begin(one.number, one.group, one.job, one.traceparent, restarted=True)
            if one.phase is Phase.SPEAKING:
                self._ask(one.number, len(one.turns), len(one.context), one.sampling)

    @override
    def received(self, entry: Entry) -> None:
        """Begin and end spans of trajectories; begin spans of turns."""
        match entry:
            case Begun():
                self._begin(entry.trajectory, entry.group, entry.job, entry.traceparent)
            case Asked():
                tokens = entry.kept + len(entry.tail)
                self._ask(entry.trajectory, entry.turn, tokens, entry.sampling)
            case Ended(is_wanted=True):
                self._end(entry.trajectory, "finished")

    @override
    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Record the worker of a turn."""
        if span := self._turns.get(request.trajectory):
            attributes: dict[str, Any] = {
                "rose.worker": worker,
                "rose.worker.kind": kind.value,
                "rose.grant_epoch": request.grant_epoch,
                "rose.first_token": request.first_token,
            }
            span.add_event("migrate" if request.first_token else "start", attributes)

    @override
    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """End spans of turns, and of dropped trajectories."""
        for outcome in outcomes:
            match outcome:
                case TurnResult():
                    self._done(outcome)
                case Gone():
                    self._end(outcome.trajectory, outcome.reason.name.lower())

    @override
    def close(self) -> None:
        """End all spans: unfinished trajectories continue in spans of the next process."""
        for trajectory in list(self._trajectories):
            self._end(trajectory, "under way")

    def _begin(
        self, trajectory: int, group: int, job: int, traceparent: str, *, restarted: bool = False
    ) -> None:
        caller = propagate.extract({"traceparent": traceparent} if traceparent else {})
        self._trajectories[trajectory] = self._tracer.start_span(
            "rose.trajectory",
            context=caller,
            attributes={
                "gen_ai.conversation.id": str(trajectory),
                "rose.trajectory": trajectory,
                "rose.group": group,
                "rose.job": job,
                "rose.restarted": restarted,
            },
        )

    def _ask(
        self, trajectory: int, turn: int, prompt_tokens: int, sampling: Sampling | None
    ) -> None:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "generate_content",
            "gen_ai.conversation.id": str(trajectory),
            "gen_ai.usage.input_tokens": prompt_tokens,
            "rose.trajectory": trajectory,
            "rose.turn": turn,
        }
        if sampling is not None:
            attributes["gen_ai.request.max_tokens"] = sampling.max_new_tokens
            attributes["gen_ai.request.temperature"] = sampling.temperature
        whole = trace.set_span_in_context(self._trajectories[trajectory])
        self._turns[trajectory] = self._tracer.start_span(
            "rose.turn", context=whole, attributes=attributes
        )

    def _done(self, result: TurnResult) -> None:
        span = self._turns.pop(result.trajectory, None)
        if span is None:
            return
        span.set_attribute("gen_ai.usage.output_tokens", len(result.tokens))
        span.set_attribute(
            "gen_ai.response.finish_reasons", ["length" if result.is_cut else "stop"]
        )
        span.set_attribute("rose.workers", list(result.workers))
        span.set_attribute("rose.resumed", result.resumed)
        if result.versions:
            span.set_attribute("rose.version.min", min(result.versions))
            span.set_attribute("rose.version.max", max(result.versions))
        span.end()

    def _end(self, trajectory: int, fate: str) -> None:
        if turn := self._turns.pop(trajectory, None):
            turn.end()
        if whole := self._trajectories.pop(trajectory, None):
            whole.set_attribute("rose.fate", fate)
            whole.end()
