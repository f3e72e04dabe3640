"""The capacity grant of a borrower: what ends it, what shrinks it, and what restores it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rose.engines.vllm.granting import EngineGrant, Granting
from rose.events import Reason, Refusal
from rose.units import NS_PER_MS, NS_PER_S

SLAB_TOKENS = 4 * 16
SLABS = 10
ALL = SLABS * SLAB_TOKENS


class ManualClock:
    """A clock that moves when a test moves it."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * NS_PER_S)


@dataclass
class Lane:
    """The part of a lane that a grant depends on."""

    lent: int = 6
    free: int = SLABS
    is_closed: bool = False
    passes: int = 0
    wait_ms: float = 0.0
    asked: int = 0
    kv: Any = field(
        default_factory=lambda: SimpleNamespace(
            blocks_per_slab=4,
            geometry=SimpleNamespace(block_tokens=16),
            allocator=SimpleNamespace(free_blocks=0),
        )
    )

    def slabs(self) -> list[int]:
        return list(range(self.lent))

    def slabs_max(self) -> int:
        return SLABS

    def retry_after_ms(self) -> float:
        return self.wait_ms

    def grow(self, blocks: int) -> Refusal | None:
        self.asked += 1
        if self.lent >= self.free:
            return Refusal(Reason.RESERVE_AT_RISK)
        self.lent += 1
        return None


@pytest.fixture
def lane() -> Lane:
    return Lane()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def changes() -> list[EngineGrant]:
    return []


@pytest.fixture
def granting(lane: Lane, clock: ManualClock, changes: list[EngineGrant]) -> Granting:
    made = Granting(lane, clock, lambda: changes.append(made.granted))  # type: ignore[arg-type]
    return made


def refuse(
    granting: Granting, clock: ManualClock, why: Reason, *, for_ns: int, lane: Lane | None = None
) -> None:
    """Refuse steps each 50 ms; with `lane`, steps start in between."""
    end_ns = clock.ns + for_ns
    while clock.ns <= end_ns:
        granting.refused(lambda: why)
        clock.ns += 50 * NS_PER_MS
        if lane is not None:
            lane.passes += 1


def test_a_grant_is_all_that_the_lane_can_get(granting: Granting) -> None:
    assert granting.granted == EngineGrant(1, ALL)
    assert granting.is_whole


def test_revoked_blocks_shrink_the_grant_until_serving_lends_again(
    granting: Granting, lane: Lane, clock: ManualClock, changes: list[EngineGrant]
) -> None:
    lane.lent = lane.free = 2
    granting.squeezed()
    assert changes == [EngineGrant(1, 2 * SLAB_TOKENS)]
    assert not granting.is_whole
    clock.ns += NS_PER_S
    granting.look()
    granting.look()
    assert lane.asked == 1  # Serving must answer each request, so there is an interval.
    assert granting.granted.kv_tokens == 2 * SLAB_TOKENS
    lane.free = SLABS
    clock.ns += NS_PER_S
    lane.wait_ms = 1.0
    granting.look()
    assert lane.asked == 1  # Serving has named a time.
    lane.wait_ms = 0.0
    granting.look()
    assert changes[1:] == [EngineGrant(1, ALL)]


def test_a_grant_of_nothing_ends_and_the_next_has_a_higher_epoch(
    granting: Granting, lane: Lane, clock: ManualClock, changes: list[EngineGrant]
) -> None:
    lane.lent = 0
    granting.squeezed()
    clock.ns += NS_PER_S
    granting.look()
    assert changes == [EngineGrant(1, 0), EngineGrant(2, ALL)]


def test_a_gate_that_closes_for_moments_ends_no_grant(
    granting: Granting, lane: Lane, clock: ManualClock, changes: list[EngineGrant]
) -> None:
    refuse(granting, clock, Reason.SERVING_BUSY, for_ns=60 * NS_PER_S, lane=lane)
    assert changes == []


@pytest.mark.parametrize(
    ("why", "bound_s"),
    [(Reason.SERVING_BUSY, 10), (Reason.SLO_AT_RISK, 1), (Reason.NO_EVIDENCE, 1)],
)
def test_steps_that_are_refused_for_too_long_end_the_grant_until_one_starts(
    granting: Granting, clock: ManualClock, changes: list[EngineGrant], why: Reason, bound_s: int
) -> None:
    refuse(granting, clock, why, for_ns=bound_s * NS_PER_S - 1)
    assert changes == []
    refuse(granting, clock, why, for_ns=NS_PER_S // 2)
    assert changes == [EngineGrant(1, 0)]
    granting.look()
    assert granting.granted.kv_tokens == 0
    granting.passed()
    assert changes[1:] == [EngineGrant(2, ALL)]


def test_requests_without_memory_have_the_loan_and_no_more(
    granting: Granting, lane: Lane, clock: ManualClock, changes: list[EngineGrant]
) -> None:
    lane.free = lane.lent
    for _ in range(20):
        granting.starved()
        granting.look()
        clock.ns += 50 * NS_PER_MS
    assert changes == [EngineGrant(1, 6 * SLAB_TOKENS)]
    assert lane.asked > 5


def test_a_closed_lane_ends_the_grant_and_another_lane_begins_one(
    granting: Granting, lane: Lane, changes: list[EngineGrant]
) -> None:
    lane.is_closed = True
    granting.look()
    assert changes == [EngineGrant(1, 0)]
    assert not granting.is_whole
    granting.use(Lane())  # type: ignore[arg-type]
    assert changes[1:] == [EngineGrant(2, ALL)]


def test_another_lane_is_another_grant_even_if_nobody_saw_the_end_of_the_first(
    granting: Granting, changes: list[EngineGrant]
) -> None:
    granting.use(Lane())  # type: ignore[arg-type]
    assert changes == [EngineGrant(2, ALL)]


def test_unknown_weights_end_the_grant_until_known_weights_are_loaded(
    granting: Granting, changes: list[EngineGrant]
) -> None:
    granting.quarantine(is_on=True)
    granting.passed()
    assert changes == [EngineGrant(1, 0)]
    granting.quarantine(is_on=False)
    assert changes[1:] == [EngineGrant(2, ALL)]


def test_a_loss_while_the_lane_regrows_is_not_forgotten(
    granting: Granting, lane: Lane, clock: ManualClock, changes: list[EngineGrant]
) -> None:
    lane.lent = 2
    granting.squeezed()
    clock.ns += NS_PER_S
    grow = lane.grow

    def grow_and_lose(blocks: int) -> Refusal | None:
        done = grow(blocks)
        lane.lent = 1
        granting.squeezed()  # As by the thread of revocations.
        return done

    lane.grow = grow_and_lose  # type: ignore[method-assign]
    granting.look()
    assert changes[-1] == EngineGrant(1, SLAB_TOKENS)
