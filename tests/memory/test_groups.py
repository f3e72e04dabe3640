"""Attention groups over the slabs of one tenant."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from rose._core import Arbiter, Grant
from rose.errors import InvalidArgument
from rose.memory import KVGeometry, KVGroups, Layout, groups_of
from tests.reference.slab_groups import Groups

SLAB, SLABS = 4096, 6
SIZES = (512, 384)  # the second does not divide a slab


def geometry_of(block_bytes: int) -> KVGeometry:
    return KVGeometry(1, 1, block_bytes, Layout.BLOCK_MAJOR)


def device(*sizes: int, slabs: int = SLABS) -> tuple[Arbiter, int, KVGroups]:
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=slabs, header_slabs=2)
    arbiter.add_partition("serving", reserve_slabs=0, limit_slabs=slabs)
    tenant = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=slabs)
    groups = KVGroups(arbiter, tenant, [geometry_of(size) for size in sizes], header_index=1)
    return arbiter, tenant, groups


def lend(arbiter: Arbiter, tenant: int, slabs: int) -> list[int]:
    grant = arbiter.grant(tenant, slabs, ttl_ns=10**15)
    return list(grant.slabs) if isinstance(grant, Grant) else []


class SharedSlabs(RuleBasedStateMachine):
    """Blocks of both groups come and go, and so do slabs; a plain model counts along."""

    runs = Bundle("runs")

    @initialize()
    def make(self) -> None:
        self.arbiter, self.tenant, self.groups = device(*SIZES)
        self.blocks = [space.allocator for space in self.groups.spaces]
        self.per_slab = [space.blocks_per_slab for space in self.groups.spaces]
        self.model = Groups(tuple(self.per_slab))

    @rule(slabs=st.integers(1, 3))
    def lend(self, slabs: int) -> None:
        for slab in lend(self.arbiter, self.tenant, slabs):
            self.model.slabs[slab] = set()

    @rule(target=runs, group=st.integers(0, 1), count=st.integers(0, 9))
    def take(self, group: int, count: int) -> Any:
        fits = count <= self.model.free(group)
        taken = self.blocks[group].alloc(count)
        assert (taken is not None) == fits
        for block in taken or ():
            held = self.model.slabs[self.blocks[group].slab_of(block)]
            assert all(owner == group for owner, _ in held)
            held.add((group, block))
        return group, taken or []

    @rule(run=consumes(runs))
    def give(self, run: tuple[int, list[int]]) -> None:
        group, blocks = run
        for block in blocks:
            self.model.slabs[self.blocks[group].slab_of(block)].discard((group, block))
        self.blocks[group].free(blocks)

    @rule(slabs=st.integers(1, 2))
    def revoke_idle(self, slabs: int) -> None:
        """Idle slabs go home in the call, whichever group had them."""
        idle = [slab for slab, held in self.model.slabs.items() if not held]
        wanted = min(slabs, len(idle))
        if wanted == 0:
            return
        revocation = self.arbiter.revoke(self.tenant, wanted, deadline_ns=10**15)
        assert self.arbiter.poll(revocation).returned == wanted
        left = {one.slab for one in self.arbiter.candidates(self.tenant)}
        assert self.model.slabs.keys() - left <= set(idle)
        self.model.slabs = {slab: self.model.slabs[slab] for slab in left}

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        for group, blocks in enumerate(self.blocks):
            assert blocks.free_blocks == self.model.free(group)
            used = sum(owner == group for held in self.model.slabs.values() for owner, _ in held)
            assert blocks.used_blocks == used
        for wanted in ([0, 0], [1, 1], [9, 0], [0, 25], [8, 11], [17, 21]):
            assert self.groups.missing_slabs(wanted) == self.model.missing_slabs(wanted)
        for candidate in self.arbiter.candidates(self.tenant):
            assert candidate.used == len(self.model.slabs[candidate.slab])

    @invariant()
    def no_byte_is_of_two_blocks(self) -> None:
        if not hasattr(self, "model"):
            return
        self.arbiter.check_invariants()
        ranges = sorted(
            (self.blocks[group].block_offset(block), SIZES[group])
            for held in self.model.slabs.values()
            for group, block in held
        )
        for (start, size), (after, _) in pairwise(ranges):
            assert start + size <= after


TestSharedSlabs = SharedSlabs.TestCase


def test_a_pinned_slab_does_not_change_group() -> None:
    arbiter, tenant, groups = device(*SIZES)
    lend(arbiter, tenant, 1)
    first, second = (space.allocator for space in groups.spaces)
    blocks = first.alloc(1)
    pins = groups.pin([blocks, []])
    first.free(blocks)
    assert second.alloc(1) is None
    groups.unpin(pins)
    assert second.alloc(1) is not None


def test_groups_are_pinned_together_or_not_at_all() -> None:
    arbiter, tenant, groups = device(*SIZES)
    lend(arbiter, tenant, 2)
    blocks = groups.spaces[0].allocator.alloc(1)
    with pytest.raises(InvalidArgument):
        groups.pin([blocks, [10_000]])
    assert all(one.pins == 0 for one in arbiter.candidates(tenant))


def test_prefixes_of_a_group_give_way_to_what_another_needs_and_not_before() -> None:
    arbiter, tenant, groups = device(*SIZES)
    lend(arbiter, tenant, 2)
    first, second = (space.allocator for space in groups.spaces)
    blocks = first.alloc(1)
    key = bytes(range(16))
    first.publish(blocks, key)
    first.free(blocks)
    held = second.alloc(groups.spaces[1].blocks_per_slab)
    assert first.lookup(key) == blocks
    more = second.alloc(1)
    assert more is not None
    assert first.lookup(key) == []
    second.free([*held, *more])


def test_null_blocks_of_groups_share_no_byte() -> None:
    arbiter, _, groups = device(*SIZES)
    ranges = sorted(
        (space.origin_bytes + block * space.geometry.id_bytes, space.geometry.id_bytes)
        for space in groups.spaces
        for block in space.null_blocks
    )
    for (start, size), (after, _) in pairwise(ranges):
        assert start + size <= after
    assert ranges[0][0] >= arbiter.slab_bytes
    assert sum(ranges[-1]) <= 2 * arbiter.slab_bytes


def test_bad_groups_are_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidArgument, match="at least one KVGeometry, got an empty"):
        groups_of([])
    arbiter, tenant, groups = device(*SIZES)
    with pytest.raises(InvalidArgument, match="must have 2 numbers"):
        groups.missing_slabs([1])
    with pytest.raises(InvalidArgument, match="one number per group"):
        arbiter.missing_slabs(tenant, [1])
    with pytest.raises(InvalidArgument, match="must be at least 0"):
        arbiter.missing_slabs(tenant, [-1, 0])
    with pytest.raises(InvalidArgument, match="no allocator here"):
        arbiter.add_group(0, block_bytes=64, origin_bytes=0)
    with pytest.raises(InvalidArgument, match="no allocator here"):
        arbiter.missing_slabs(0, [1])
    layered = KVGeometry(1, 1, 64)
    with pytest.raises(InvalidArgument, match="every geometry must be block-major"):
        KVGroups(arbiter, tenant, [layered, layered], header_index=0)
    with pytest.raises(InvalidArgument, match="slab_bytes must be at least 5120"):
        KVGroups(arbiter, tenant, [geometry_of(1536), geometry_of(1024)], header_index=0)
