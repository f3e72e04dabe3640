"""Spans of OpenTelemetry: a trace per trajectory, a span per turn. The extra `tracing` has its API.

Names are those of its conventions for generative models where there is one, and `rose.*` elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from typing_extensions import override

from rose.scheduler.course import Course, Phase
from rose.scheduler.front_events import Asked, Begun, Ended, Entry
from rose.scheduler.rollouts import Gone, Outcome, Rollouts
from rose.scheduler.seen_leases import SeenLeases
from rose.scheduler.turns import TurnResult
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import LeaseChanged, TurnRequest, WorkerKind

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None

TRACER: Final = "rose.scheduler"


class Span(Protocol):
    """What is used of a span of OpenTelemetry."""

    def set_attribute(self, key: str, value: Any) -> None:
        """Note something about it."""

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Note that something happened."""

    def end(self) -> None:
        """End it."""


# (name, the span it is part of or None, its traceparent, attributes) to a span that has begun
StartSpan = Callable[[str, "Span | None", str, Mapping[str, Any]], Span]


def open_spans(tracer_provider: object | None = None) -> FrontWatch:
    """Return what makes spans; one that sees nothing where OpenTelemetry is not installed.

    Args:
        tracer_provider: of OpenTelemetry; None for the process's own.
    """
    if trace is None:
        return FrontWatch()
    provider: Any = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    tracer = provider.get_tracer(TRACER)

    def start(name: str, parent: Any, traceparent: str, attributes: Mapping[str, Any]) -> Span:
        if parent is not None:
            context = trace.set_span_in_context(parent)
        else:
            context = propagate.extract({"traceparent": traceparent} if traceparent else {})
        span: Span = tracer.start_span(name, context=context, attributes=dict(attributes))
        return span

    return Spans(start)


class Spans(FrontWatch):
    """Makes spans of what it sees.

    Args:
        start: begins one.
    """

    def __init__(self, start: StartSpan) -> None:
        self._start = start
        self._trajectories: dict[int, Span] = {}
        self._turns: dict[int, Span] = {}
        self._on: dict[int, int] = {}  # the worker that has a turn, by trajectory
        self._seen_leases = SeenLeases()

    def opened(self, rollouts: Rollouts) -> None:
        """Begin spans of what an earlier life of the scheduler left; its own were never ended."""
        for course in rollouts.state.trajectories.values():
            self._begin(course.number, course.group, course.job, course.traceparent, restarted=True)
            if course.phase is Phase.SPEAKING:
                self._ask(course.number, len(course.turns), course)

    def heard(self, entry: Entry) -> None:
        """Begin and end spans of trajectories, begin those of turns."""
        match entry:
            case Begun():
                self._begin(entry.trajectory, entry.group, entry.job, entry.traceparent)
            case Asked():
                self._ask(entry.trajectory, entry.turn, entry)
            case Ended(is_wanted=True):
                self._end(entry.trajectory, "finished")
            case LeaseChanged():
                if not self._seen_leases.is_news(entry) or entry.kv_tokens > 0:
                    return
                for trajectory, worker in self._on.items():
                    if worker == entry.worker and trajectory in self._turns:
                        self._turns[trajectory].add_event(
                            "lease.revoked",
                            {"rose.worker": worker, "rose.lease_epoch": entry.lease_epoch},
                        )

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Note who has a turn now."""
        span = self._turns.get(request.trajectory)
        if span is None:
            return
        span.add_event(
            "migrate" if request.first_token else "start",
            {
                "rose.worker": worker,
                "rose.worker.kind": kind.value,
                "rose.lease_epoch": request.lease_epoch,
                "rose.first_token": request.first_token,
            },
        )
        self._on[request.trajectory] = worker

    @override
    def stepped(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """End spans of turns, and of trajectories that nobody will have."""
        for outcome in outcomes:
            match outcome:
                case TurnResult():
                    self._done(outcome)
                case Gone():
                    self._end(outcome.trajectory, outcome.reason.name.lower())

    def close(self) -> None:
        """End all: what is not over goes on in spans of the next life."""
        for trajectory in list(self._trajectories):
            self._end(trajectory, "under way")

    def _begin(
        self, trajectory: int, group: int, job: int, traceparent: str, *, restarted: bool = False
    ) -> None:
        self._trajectories[trajectory] = self._start(
            "rose.trajectory",
            None,
            traceparent,
            {
                "gen_ai.conversation.id": str(trajectory),
                "rose.trajectory": trajectory,
                "rose.group": group,
                "rose.job": job,
                "rose.restarted": restarted,
            },
        )

    def _ask(self, trajectory: int, turn: int, wanted: Asked | Course) -> None:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "generate_content",
            "gen_ai.conversation.id": str(trajectory),
            "rose.trajectory": trajectory,
            "rose.turn": turn,
        }
        if wanted.sampling is not None:
            attributes["gen_ai.request.max_tokens"] = wanted.sampling.max_new_tokens
            attributes["gen_ai.request.temperature"] = wanted.sampling.temperature
        if isinstance(wanted, Asked):
            attributes["gen_ai.usage.input_tokens"] = wanted.kept + len(wanted.tail)
        else:
            attributes["gen_ai.usage.input_tokens"] = len(wanted.context)
        parent = self._trajectories.get(trajectory)
        self._turns[trajectory] = self._start("rose.turn", parent, "", attributes)

    def _done(self, result: TurnResult) -> None:
        span = self._turns.pop(result.trajectory, None)
        self._on.pop(result.trajectory, None)
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
        turn = self._turns.pop(trajectory, None)
        self._on.pop(trajectory, None)
        if turn is not None:
            turn.end()
        span = self._trajectories.pop(trajectory, None)
        if span is not None:
            span.set_attribute("rose.fate", fate)
            span.end()
