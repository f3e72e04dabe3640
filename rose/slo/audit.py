"""Find why tokens in a certificate log were late, by the rules of `docs/certificates.md`."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rose.slo.audit_line import StepLine, Stretch, Use, nanoseconds
from rose.slo.log_file import LogRecord, read_log
from rose.units import NS_PER_MS


class Part(Enum):
    """A part of the time before a late token.

    ESTIMATOR: time of steps beyond their upper estimate.
    BLOCKING: time of waits for a segment beyond its promised length.
    LENT: time lent to rollouts beyond the slack.
    HOST: time outside steps that was neither lent nor spent waiting for a segment.
    LOAD: time of steps for other requests, and of the token's own steps beyond the target.
    PROMISED: the rest, which the certificates allow for.
    """

    ESTIMATOR = "estimator"
    BLOCKING = "blocking"
    LENT = "lent"
    HOST = "host"
    LOAD = "load"
    PROMISED = "promised"


# The cause is the largest of these parts; of several equally large parts, the first.
CAUSES: Final = (Part.ESTIMATOR, Part.BLOCKING, Part.LENT, Part.HOST, Part.LOAD)


@dataclass(frozen=True, slots=True)
class Miss:
    """A token that came later than its target.

    Args:
        request: arrival number of the token's request, from 0; requests without a prompt are not
            counted.
        token: number of the token within its request; 1 is the first.
        began_ns: time of the request's previous token, or of its arrival.
        came_ns: time of the token.
        target_ms: the missed target, TTFT or TPOT.
        parts_ns: nanoseconds of each part; the sum is `came_ns` - `began_ns`.
        cause: one of `CAUSES`.
    """

    request: int
    token: int
    began_ns: int
    came_ns: int
    target_ms: float
    parts_ns: dict[Part, int]
    cause: Part

    @property
    def took_ms(self) -> float:
        """Return the milliseconds before the token."""
        return (self.came_ns - self.began_ns) / NS_PER_MS


@dataclass(slots=True)
class _Request:
    number: int
    prompt_tokens: int
    is_prefilled: bool
    last_ns: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Gap:
    """The time before one token."""

    request: _Request
    began_ns: int
    came_ns: int
    is_first: bool  # whether TTFT applies: first token of a request that did not arrive prefilled
    token: int


def audit(log: str | Path, *, met_alone: Collection[int] | None = None) -> list[Miss]:
    """Find every token of a log that missed its target, and the cause of each miss.

    Args:
        log: log file; it may end early, but not within a record.
        met_alone: arrival numbers of the requests that meet their targets without rollouts; only
            misses of these requests are returned. None: all misses.

    Returns:
        Misses in the order of their tokens.

    Raises:
        InvalidArgument: the file does not exist, or is not a log of this version.
        CorruptData: the file is damaged.
    """
    header, records = read_log(Path(log))
    line = StepLine(records, signal_ms=header["signal_ms"])
    misses = []
    for gap in _gaps(records):
        target_ms = header["ttft_ms"] if gap.is_first else header["tpot_ms"]
        is_asked = met_alone is None or gap.request.number in met_alone
        if is_asked and (gap.came_ns - gap.began_ns) / NS_PER_MS > target_ms:
            misses.append(_miss(gap, target_ms, line))
    return misses


def _gaps(records: Sequence[LogRecord]) -> Iterator[_Gap]:
    """Yield the time before every token of a request with a prompt."""
    live: dict[int, _Request] = {}
    arrivals = 0
    for record in records:
        fields = record.fields
        match record.kind:
            case "ARRIVED" if fields["tokens"] > 0:
                live[fields["slot"]] = _Request(
                    arrivals, fields["tokens"], fields["prefilled"] != 0, record.time_ns
                )
                arrivals += 1
            case "ARRIVED" | "FINISHED":
                live.pop(fields["slot"], None)
            case "TOKENS":
                for slot in _slots(fields):
                    if (request := live.get(slot)) is not None:
                        yield _take_token(request, record.time_ns)


def _slots(fields: dict[str, Any]) -> Iterator[int]:
    """Yield the slots of a TOKENS record, ascending."""
    bits = int.from_bytes(fields["bitmap"], "little")
    while bits:
        lowest = bits & -bits
        yield int(fields["first_slot"]) + lowest.bit_length() - 1
        bits ^= lowest


def _take_token(request: _Request, came_ns: int) -> _Gap:
    began_ns, request.last_ns = request.last_ns, came_ns
    request.tokens += 1
    is_first = request.tokens == 1 and not request.is_prefilled
    return _Gap(request, began_ns, came_ns, is_first, request.tokens)


def _miss(gap: _Gap, target_ms: float, line: StepLine) -> Miss:
    """Divide the time of a miss into its parts."""
    took_ns = gap.came_ns - gap.began_ns
    stretches = list(line.between(gap.began_ns, gap.came_ns))
    own = _own_steps(gap, line, [stretch for stretch, _ in stretches])
    uses: Counter[Use] = Counter()
    own_ns = 0
    for stretch, part_ns in stretches:
        uses[stretch.use] += part_ns
        own_ns += part_ns if stretch.use is Use.STEP and stretch.step in own else 0
    target_ns = nanoseconds(target_ms)
    slack_ns = max(target_ns - sum(line.steps[index].upper_ns for index in own), 0)
    parts = {
        Part.ESTIMATOR: uses[Use.OVERRUN],
        Part.BLOCKING: uses[Use.BLOCKED],
        Part.LENT: max(uses[Use.LENT] - slack_ns, 0),
        Part.HOST: took_ns - uses.total(),
        Part.LOAD: uses[Use.STEP] - own_ns + max(own_ns - target_ns, 0),
    }
    most = max(CAUSES, key=lambda part: parts[part])
    return Miss(
        request=gap.request.number,
        token=gap.token,
        began_ns=gap.began_ns,
        came_ns=gap.came_ns,
        target_ms=target_ms,
        parts_ns=parts | {Part.PROMISED: took_ns - sum(parts.values())},
        cause=most if parts[most] > 0 else Part.LOAD,
    )


def _own_steps(gap: _Gap, line: StepLine, stretches: Sequence[Stretch]) -> frozenset[int]:
    """Return the indices of the steps that compute this token, as far as the log shows."""
    ran = sorted({one.step for one in stretches if one.use in (Use.STEP, Use.OVERRUN)})
    if not gap.is_first:
        return frozenset(ran[-1:])
    own: set[int] = set()
    missing = float(gap.request.prompt_tokens)
    for index in reversed(ran):
        if missing <= 0 or line.steps[index].began_ns < gap.began_ns:
            break
        own.add(index)
        missing -= max(0.0, line.steps[index].prefill_tokens)  # 0 for NaN too
    return frozenset(own)
