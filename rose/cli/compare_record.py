"""What `rose compare` measured, in full, whether in virtual time or on real engines."""

from dataclasses import dataclass

from rose.cli.compare_schemes import Scheme
from rose.demo.record import Slice


@dataclass(frozen=True, slots=True)
class Audit:
    """What the second implementation says about the certificates of one scheme at one load.

    Args:
        scheme: its name.
        load: as it was asked for; None when one log covers all of them.
        granted: certificates in the log.
        verified: those that hold.
        violations: those that do not.
    """

    scheme: str
    load: float | None
    granted: int
    verified: int
    violations: int


@dataclass(frozen=True, slots=True)
class CompareRecord:
    """A whole comparison, or as much of it as there was before it was interrupted.

    Args:
        is_virtual: in virtual time; on real engines otherwise.
        schemes: in the order of the report.
        windows: of all schemes at all loads.
        audits: of the schemes that leave certificates.
        left_out: what this machine cannot show, one sentence each.
        slo_ttft_ms: target of the time to the first token.
        slo_tpot_ms: target of the time from a token to the next.
        trace: its name.
        machine: what ran it.
        settings: what it was asked for.
        seed: of traffic, prompts and noise.
        command: the command line that repeats it.
        complete: False when it was interrupted.
    """

    is_virtual: bool
    schemes: tuple[Scheme, ...]
    windows: tuple[Slice, ...]
    audits: tuple[Audit, ...]
    left_out: tuple[str, ...]
    slo_ttft_ms: float
    slo_tpot_ms: float
    trace: str
    machine: dict[str, object]
    settings: dict[str, object]
    seed: int
    command: str
    complete: bool
