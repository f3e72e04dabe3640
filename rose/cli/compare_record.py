"""What `rose compare` measured, in full, whether in virtual time or on real engines."""

from dataclasses import dataclass

from rose.cli.compare_schemes import Scheme


@dataclass(frozen=True, slots=True)
class Answered:
    """One serving request that was answered.

    Args:
        ttft_ms: from arrival to the first token.
        tpot_ms: mean time of each later token; None when the output has one token.
        longest_gap_ms: longest time from a token to the next; None likewise.
        late_gaps: how many of these times were over the target.
        output_tokens: tokens generated.
    """

    ttft_ms: float
    tpot_ms: float | None
    longest_gap_ms: float | None
    late_gaps: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class SchemeWindow:
    """One scheme on one piece of the trace; request i is the same one under every scheme.

    Args:
        scheme: its name.
        load: as it was asked for.
        window: pairs the schemes.
        seconds: from the start of the window to the last answer.
        busy_s: time in which a serving step ran.
        harvest: what rollouts got, over what they get of a device of their own in that time.
        requests: in the order of their arrival.
        blocked_ms: for each serving step that found rollouts at work, how long it waited.
        pauses: how often rollouts were stopped.
        pauses_ms: for each close that found rollouts at work, how long until they had stopped;
            empty where that is not noted one by one.
        segments: that rollouts ran.
    """

    scheme: str
    load: float
    window: int
    seconds: float
    busy_s: float
    harvest: float | None
    requests: tuple[Answered, ...]
    blocked_ms: tuple[float, ...]
    pauses: int
    pauses_ms: tuple[float, ...]
    segments: int


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
    windows: tuple[SchemeWindow, ...]
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
