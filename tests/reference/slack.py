"""The most segments that can go before a serving step, by trying every schedule.

No inequality is written here: schedules are played out, and nobody may be late in any of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Situation:
    """What is known before a step; all times in eighths of a millisecond, from now on.

    `deadline` is when the earliest next token is due, `step` what the step takes, and `chunk` the
    step with a chunk of a request that came in time for it. Behind a `committed` batch a request
    that comes is in the step after it.
    """

    segment: int
    signal: int
    step: int
    chunk: int
    deadline: int
    ttft: int
    blocking: int
    is_committed: bool
    most: int


def schedules(now: Situation, segments: int) -> Iterator[tuple[int | None, int]]:
    """Yield (when a request arrives, when the rollouts end), at every eighth of a millisecond.

    Its arrival closes the gate, which the device may see at once or only when all has run.
    """
    quantum = segments * now.segment
    yield None, quantum
    for arrival in range(quantum + now.signal + 1):
        running_until = -(-arrival // now.segment) * now.segment
        yield arrival, min(quantum, max(running_until, now.segment))
        yield arrival, quantum


def is_safe(now: Situation, segments: int) -> bool:
    """Whether nobody is late, and serving is not held up for too long, in any schedule."""
    for arrival, rollouts_end in schedules(now, segments):
        begins = rollouts_end + now.signal
        if begins > now.blocking:
            return False
        joins = arrival is not None and not now.is_committed
        ends = begins + (max(now.step, now.chunk) if joins else now.step)
        if ends > now.deadline:
            return False
        if arrival is not None:
            first_token = ends if joins else ends + now.chunk
            if first_token - arrival > now.ttft:
                return False
    return True


def most_segments(now: Situation) -> int:
    """Return the largest number that is safe, 0 if none is."""
    return max((n for n in range(1, now.most + 1) if is_safe(now, n)), default=0)
