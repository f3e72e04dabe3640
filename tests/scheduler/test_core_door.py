"""What the core takes it can restore, and what it cannot take it refuses in one sentence."""

import math
import random
import re
from typing import Any, get_args

import pytest

from rose.errors import InvalidArgument
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Admit,
    Drop,
    DropReason,
    Event,
    JobJoined,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnEnded,
    WorkerJoined,
)
from rose.scheduler.worker import TurnEnd, WorkerKind
from tests.scheduler.rig import BORROWED, Rig

CHUNKS, WORLDS, STEPS = 4, 60, 60
SENTENCE_MAX = 600
# Ends of ranges, numbers that are none of their kind, and what is no number.
ODD = (
    *(-1, 2**31, 2**40, 2**40 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**70, 1.0, 0.5, 1e-6),
    *(5e-324, 1e-300, 1e300, math.inf, math.nan, None, "x", [], True),
)
USUAL = {
    **dict.fromkeys(("kv_tokens", "max_new_tokens", "context_tokens"), (10, 50, 100, 1000)),
    **dict.fromkeys(("seats", "batch_trajectories"), (1, 2, 8)),
    **dict.fromkeys(("prefill_tokens_per_s", "decode_step_ms", "weight"), (1.0, 10.0, 100.0)),
    "kind": tuple(WorkerKind),
    "end": tuple(TurnEnd),
    "is_recalling": (True, False),
    "version_max": (2, 3, 2**40),
}


def value(draw: random.Random, name: str, odd_share: float) -> Any:
    is_odd = draw.random() < odd_share
    return draw.choice(ODD if is_odd else USUAL.get(name, (0, 1, 2, 3, 4)))


def fields_of(kind: type[Event]) -> list[str]:
    """Return the parameters that the binding names in the docstring of the constructor."""
    return re.findall(r"(\w+): ", kind.__init__.__doc__.partition("->")[0])[1:]


def event(draw: random.Random, odd_share: float) -> Event:
    """Return an event; its class refuses what is no number."""
    kind = draw.choice(get_args(Event))
    while True:
        try:
            return kind(*[value(draw, name, odd_share) for name in fields_of(kind)])
        except TypeError:  # noqa: PERF203
            continue


def refused(core: SchedulerCore, events: list[Event], now_ns: Any) -> str | None:
    try:
        core.step(events, now_ns)
    except (InvalidArgument, TypeError) as error:  # TypeError: for what is no time
        return str(error)
    return None


@pytest.mark.parametrize("odd_share", [0.1, 0.02])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_comes_is_refused_in_a_sentence_or_can_be_restored(chunk, odd_share) -> None:
    taken = 0
    for seed in range(chunk * WORLDS, (chunk + 1) * WORLDS):
        draw = random.Random(seed)
        policy = draw.choice(tuple(PlacementPolicy))
        core = SchedulerCore(SchedulerSettings(batch_trajectories=4), policy)
        now_ns = 0
        for _ in range(STEPS):
            events = [event(draw, odd_share) for _ in range(draw.choice((1, 1, 1, 3)))]
            now_ns += draw.choice((0, 1, 10**6, 10**8, 10**9))
            is_odd = draw.random() < odd_share / 4
            if refusal := refused(core, events, draw.choice(ODD) if is_odd else now_ns):
                assert len(refusal) < SENTENCE_MAX
                continue
            taken += 1
            image = core.snapshot()
            assert SchedulerCore.restored(image).snapshot() == image
    assert taken > CHUNKS * WORLDS  # else it tells nothing of images


@pytest.mark.parametrize(
    "job", [JobJoined(0, 2**40, 2**20, 1.0), JobJoined(0, 2, 2**20 + 1, 1.0)], ids=["all", "one"]
)
def test_a_job_that_could_not_be_counted_is_refused(job) -> None:
    with pytest.raises(InvalidArgument, match="max_staleness"):
        Rig().step(job)
    Rig().step(JobJoined(0, 2**39, 2**20, 1.0))


@pytest.mark.parametrize("name", ["prefill_tokens_per_s", "decode_step_ms"])
@pytest.mark.parametrize("rate", [5e-324, 0.0, 1e300, math.inf, math.nan])
def test_a_rate_that_costs_cannot_be_worked_out_of_is_refused(name, rate) -> None:
    figures = {"prefill_tokens_per_s": 1.0, "decode_step_ms": 1.0, name: rate}
    worker = WorkerJoined(
        *(0, BORROWED, 0, 1, figures["prefill_tokens_per_s"], figures["decode_step_ms"], 0.0, 0)
    )
    with pytest.raises(InvalidArgument, match=f"{name} must be from 1e-6 to 2"):
        Rig().step(worker)


def test_what_is_no_time_no_kind_or_no_event_is_refused() -> None:
    rig = Rig()
    for kind in ("borrowed", "BORROWED", 1, None, TurnEnd.FINISHED):
        with pytest.raises(TypeError, match="not a member of the enumeration"):
            WorkerJoined(0, kind, 0, 1, 1.0, 1.0, 0.0, 0)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        TrajectoryCreated("x", 0)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        TrajectoryCreated(1 << 70, 0)
    with pytest.raises(InvalidArgument, match="has no event like 'an event'"):
        rig.step("an event")  # type: ignore[arg-type]
    for now_ns in (1.5, "1", None, 2**63):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            rig.core.step([], now_ns)  # type: ignore[arg-type]
    assert rig.step() == []


def test_events_and_actions_are_equal_if_their_fields_are() -> None:
    assert TrajectoryCreated(1, 2) == TrajectoryCreated(1, group=2, job=0)
    assert TrajectoryCreated(1, 2) != TrajectoryCreated(1, 3)
    assert Admit(1) != TrajectoryEnded(1)
    assert repr(TurnEnded(1, 0, 2, 3, TurnEnd.REFUSED)) == "TurnEnded(1, 0, 2, 3, 'REFUSED', None)"
    assert Drop(1, DropReason.VERSION).reason == "VERSION"
