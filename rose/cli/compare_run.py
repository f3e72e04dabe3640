"""What `rose compare` asks of either way to run: in virtual time, or on real engines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rose.cli.compare_record import Audit
from rose.cli.compare_schemes import Scheme
from rose.demo.record import Slice
from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.traces import Trace

NoteWindow = Callable[[Slice], None]
NoteAudit = Callable[[Audit], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for.

    Args:
        trace: of the lengths that requests shall have; its rate does not matter.
        loads: how busy serving is, ascending; each in (0, 1).
        seconds: of traffic, for each scheme at each load.
        slo: of serving.
        schemes: in the order of the report, `alone` first.
        seed: of traffic, prompts and noise.
    """

    trace: Trace
    loads: list[float]
    seconds: float
    slo: SLO
    schemes: list[Scheme]
    seed: int


@dataclass(frozen=True, slots=True)
class Listener:
    """Who follows a run.

    Args:
        window: gets each window when it is there, so that an interrupt loses one at most.
        audit: gets what became of the certificates of a scheme.
        say: gets what is done next.
        logs: folder for certificates.
    """

    window: NoteWindow
    audit: NoteAudit
    say: Say
    logs: Path


def check_covers(trace: Trace, seconds: float) -> None:
    """Refuse a trace that, at the rate it has now, does not last for `seconds`.

    Raises:
        InvalidArgument: it is too short.
    """
    if trace.duration_s < seconds:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at {trace.mean_rate_rps:.2f} "
            f"requests/s, less than {seconds:g} s: lower --seconds or --load"
        )


class Run(Protocol):
    """One way to run schemes."""

    @property
    def possible(self) -> frozenset[str]:
        """Names of the schemes it can show here."""
        ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """What it cannot show here, and why: one sentence each."""
        ...

    @property
    def prompt_tokens_max(self) -> int | None:
        """The longest prompt it can serve; None for any."""
        ...

    @property
    def output_tokens_max(self) -> int | None:
        """The longest output it can serve; None for any."""
        ...

    @property
    def settings(self) -> dict[str, object]:
        """What else shapes its numbers, for the report."""
        ...

    def run(self, asked: Asked, listener: Listener) -> None:
        """Run every scheme at every load.

        Raises:
            InvalidArgument: what was asked for does not fit together.
            KeyboardInterrupt: when it is there; what the listener has is whole.
        """
        ...
