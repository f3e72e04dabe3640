"""The C++ arbiter and its allocators do what the plain model does, over all orders of calls."""

import copy
import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rose._core import Arbiter, Grant, LedgerView, ManualClock
from rose.errors import InvalidArgument
from tests.reference.memory import NOBODY, MemoryModel, Tenant

SLAB, SLABS, HEADERS = 4096, 7, 2
# Serving's blocks divide a slab, the rollout's do not.
TENANTS = (
    Tenant(reserve=2, limit=7, block_bytes=1024, origin=0),
    Tenant(reserve=1, limit=6, block_bytes=600, origin=SLAB),
)
PARTITIONS = st.integers(0, 1)
COUNTS = st.integers(1, SLABS)
TIMES = st.integers(1, 50)
KEYS = st.integers(0, 7)


def key_bytes(key: int) -> bytes:
    return key.to_bytes(16, "little")


class MemoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.arbiter = Arbiter.create(
            slab_bytes=SLAB, slab_count=SLABS, header_slabs=HEADERS, clock=self.clock
        )
        self.model = MemoryModel(slab_bytes=SLAB, slab_count=SLABS, header_slabs=HEADERS)
        self.model.now = self.clock.now_ns()
        self.blocks = []
        for index, tenant in enumerate(TENANTS):
            self.model.add(copy.deepcopy(tenant))
            partition = self.arbiter.add_partition(
                f"tenant {index}", reserve_slabs=tenant.reserve, limit_slabs=tenant.limit
            )
            assert partition == index
            self.blocks.append(
                self.arbiter.allocator(
                    index, block_bytes=tenant.block_bytes, origin_bytes=tenant.origin
                )
            )
        fd = self.arbiter.share_ledger()
        self.ledger = LedgerView.open(fd)
        os.close(fd)
        for blocks in self.blocks:
            blocks.set_cache_namespace(("", 0))
        self.next_lease = 1
        self.next_revocation = 1

    def is_live(self, partition: int) -> bool:
        return self.model.tenants[partition].is_live

    # ---- slabs

    @rule(partition=PARTITIONS, n=COUNTS)
    def take(self, partition: int, n: int) -> None:
        if self.is_live(partition):
            assert self.arbiter.take(partition, n) == self.model.take(partition, n)

    @rule(partition=PARTITIONS, n=COUNTS)
    def give_back(self, partition: int, n: int) -> None:
        if self.is_live(partition):
            assert self.arbiter.give_back(partition, n) == self.model.give_back(partition, n)

    @rule(partition=PARTITIONS, n=COUNTS, ttl=st.integers(1, 200))
    def grant(self, partition: int, n: int, ttl: int) -> None:
        if not self.is_live(partition):
            return
        answer = self.arbiter.grant(partition, n, ttl_ns=ttl)
        due = self.model.grant(partition, n, ttl=ttl, lease=self.next_lease)
        if isinstance(answer, Grant):
            assert answer.slabs == due
            assert answer.lease_id == self.next_lease
            assert answer.lease_epoch == self.model.leases[self.next_lease].epoch
            self.next_lease += 1
        else:
            assert answer.name == due

    @rule(data=st.data(), ttl=TIMES, off=st.sampled_from((0, 0, 1)))
    def renew(self, data: Any, ttl: int, off: int) -> None:
        lease_id = data.draw(st.integers(1, self.next_lease))
        lease = self.model.leases.get(lease_id)
        epoch = (lease.epoch if lease else 1) + off
        answer = self.arbiter.renew(lease_id, lease_epoch=epoch, ttl_ns=ttl)
        assert answer.name == self.model.renew(lease_id, epoch=epoch, ttl=ttl)

    @rule(grace=st.integers(0, 20))
    def expire(self, grace: int) -> None:
        started = self.arbiter.expire(grace_ns=grace)
        assert started == self.model.expire(grace=grace, first_id=self.next_revocation)
        self.next_revocation += len(started)

    @rule(by=TIMES)
    def advance(self, by: int) -> None:
        self.clock.advance(by)
        self.model.now += by

    @rule(
        partition=PARTITIONS,
        n=COUNTS,
        within=st.integers(0, 40),
        has_taker=st.booleans(),
    )
    def revoke(self, partition: int, n: int, within: int, has_taker: bool) -> None:
        other = 1 - partition
        if not self.is_live(partition):
            return
        taker = other if has_taker and self.is_live(other) else None
        deadline = self.model.now + within
        name = self.arbiter.revoke(partition, n, deadline_ns=deadline, taker=taker)
        assert name == self.next_revocation
        self.next_revocation += 1
        self.model.revoke(
            partition,
            n,
            deadline=deadline,
            taker=NOBODY if taker is None else taker,
            name=name,
        )

    @precondition(lambda self: self.model.revocations)
    @rule(data=st.data())
    def poll(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.revocations)))
        got = self.arbiter.poll(name)
        due = self.model.poll(name)
        assert (got.wanted, got.returned, got.pending, got.fenced) == due

    @rule(partition=PARTITIONS)
    def prove_completion(self, partition: int) -> None:
        assert self.arbiter.prove_completion(partition) == self.model.prove(partition)

    # Rarely: nothing happens to a tenant after that.
    @rule(partition=st.sampled_from([None] * 40 + [0, 1]))
    def drop(self, partition: int | None) -> None:
        if partition is None:
            return
        has_loans = self.is_live(partition) and bool(self.model.of(partition, "GRANTED"))
        self.arbiter.drop_partition(partition)
        self.model.drop(partition, name=self.next_revocation)
        self.next_revocation += has_loans

    # ---- blocks

    @rule(partition=PARTITIONS, n=st.integers(0, 12))
    def alloc(self, partition: int, n: int) -> None:
        ids = self.blocks[partition].alloc(n)
        self.model.accept_alloc(partition, n, ids)

    @rule(partition=PARTITIONS, data=st.data())
    def free(self, partition: int, data: Any) -> None:
        if used := self.used(partition):
            ids = data.draw(st.lists(st.sampled_from(used), max_size=12, unique=True))
            self.blocks[partition].free(ids)
            self.model.free(partition, ids)

    @rule(partition=PARTITIONS, ids=st.lists(st.integers(-1, 80), max_size=4))
    def free_anything(self, partition: int, ids: list[int]) -> None:
        if self.model.may_free(partition, ids):
            self.blocks[partition].free(ids)
            self.model.free(partition, ids)
        else:
            with pytest.raises(InvalidArgument):
                self.blocks[partition].free(ids)

    @rule(partition=PARTITIONS, n=st.integers(0, 8))
    def reserve(self, partition: int, n: int) -> None:
        blocks = self.blocks[partition]
        before = [blocks.used(slab) for slab in range(SLABS)]
        name = blocks.reserve(n)
        after = [blocks.used(slab) for slab in range(SLABS)]
        aside = {s: after[s] - before[s] for s in range(SLABS) if after[s] != before[s]}
        self.model.accept_reserve(partition, name, n, aside)

    @precondition(lambda self: self.model.tickets)
    @rule(data=st.data(), n=st.integers(0, 5))
    def commit(self, data: Any, n: int) -> None:
        partition, name = data.draw(st.sampled_from(sorted(self.model.tickets)))
        ids = self.blocks[partition].commit(name, n)
        self.model.accept_commit(partition, name, n, ids)

    @precondition(lambda self: self.model.tickets)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        partition, name = data.draw(st.sampled_from(sorted(self.model.tickets)))
        self.blocks[partition].cancel(name)
        self.model.cancel(partition, name)

    # ---- references and prefixes

    def used(self, partition: int) -> list[int]:
        owned = [slab for slab in self.model.slabs if slab.owner == partition]
        return [block for slab in owned for block in sorted(slab.used)]

    @rule(partition=PARTITIONS, data=st.data())
    def share(self, partition: int, data: Any) -> None:
        owned = [slab for slab in self.model.slabs if slab.owner == partition]
        known = [block for slab in owned for block in sorted([*slab.used, *slab.cached])]
        if known:
            ids = data.draw(st.lists(st.sampled_from(known), max_size=6))
            self.blocks[partition].share(ids)
            self.model.share(partition, ids)

    @rule(partition=PARTITIONS, ids=st.lists(st.integers(-1, 80), max_size=3))
    def share_anything(self, partition: int, ids: list[int]) -> None:
        if self.model.may_share(partition, ids):
            self.blocks[partition].share(ids)
            self.model.share(partition, ids)
        else:
            with pytest.raises(InvalidArgument):
                self.blocks[partition].share(ids)

    @rule(partition=PARTITIONS, data=st.data())
    def publish(self, partition: int, data: Any) -> None:
        if used := self.used(partition):
            ids = data.draw(st.lists(st.sampled_from(used), max_size=6))
            keys = data.draw(st.lists(KEYS, min_size=len(ids), max_size=len(ids)))
            self.blocks[partition].publish(ids, b"".join(map(key_bytes, keys)))
            self.model.publish(partition, ids, keys)

    @rule(partition=PARTITIONS, keys=st.lists(KEYS, max_size=4))
    def lookup(self, partition: int, keys: list[int]) -> None:
        found = self.blocks[partition].lookup(list(map(key_bytes, keys)))
        assert found == self.model.lookup(partition, keys)

    @rule(partition=PARTITIONS, keys=st.lists(KEYS, max_size=4))
    def acquire(self, partition: int, keys: list[int]) -> None:
        found = self.blocks[partition].acquire(list(map(key_bytes, keys)))
        assert found == self.model.lookup(partition, keys)
        self.model.share(partition, found)

    @rule(partition=PARTITIONS, data=st.data())
    def forget(self, partition: int, data: Any) -> None:
        if used := self.used(partition):
            cached = [b for s in self.model.open(partition) for b in sorted(s.cached)]
            ids = data.draw(st.lists(st.sampled_from(used + cached), max_size=3))
            self.blocks[partition].forget(ids)
            self.model.forget(partition, ids)

    @rule(partition=PARTITIONS, name=st.sampled_from(["", "one", "two"]))
    def set_cache_namespace(self, partition: int, name: str) -> None:
        self.blocks[partition].set_cache_namespace((name, len(name)))
        self.model.enter_namespace(partition, name)

    # ---- evacuation

    @rule(
        partition=PARTITIONS,
        slabs=st.none() | st.lists(st.integers(0, SLABS - 1), max_size=4),
        limit=st.integers(0, 20),
    )
    def plan_evacuation(self, partition: int, slabs: list[int] | None, limit: int) -> None:
        plan = self.blocks[partition].plan_evacuation(slabs, limit)
        if slabs is None:
            self.model.accept_sparse_plan(partition, limit, plan)
        else:
            self.model.accept_plan(partition, slabs, limit, plan)

    @precondition(lambda self: self.model.moves)
    @rule(data=st.data(), is_done=st.booleans())
    def end_evacuation(self, data: Any, is_done: bool) -> None:
        partition = data.draw(st.sampled_from(sorted({p for p, _ in self.model.moves})))
        planned = sorted(to for p, to in self.model.moves if p == partition)
        targets = data.draw(st.permutations(planned))[: data.draw(st.integers(1, len(planned)))]
        sources = [self.model.moves[partition, to].from_block for to in targets]
        if is_done:
            now_at = self.blocks[partition].finish_evacuation(sources, targets)
            assert now_at == self.model.end_moves(partition, targets, is_done=True)
        else:
            self.blocks[partition].cancel_evacuation(sources, targets)
            self.model.end_moves(partition, targets, is_done=False)

    # ---- pins

    @rule(partition=PARTITIONS, data=st.data())
    def pin(self, partition: int, data: Any) -> None:
        held = [slab.index for slab in self.model.slabs if slab.owner == partition]
        if held:
            slabs = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=3))
            self.model.pin(partition, self.blocks[partition].pin_slabs(slabs), slabs)

    @rule(partition=PARTITIONS, data=st.data())
    def pin_blocks(self, partition: int, data: Any) -> None:
        used = {
            block: slab.index
            for slab in self.model.slabs
            if slab.owner == partition
            for block in slab.used
        }
        if used:
            ids = data.draw(st.lists(st.sampled_from(sorted(used)), min_size=1, max_size=5))
            name = self.blocks[partition].pin(ids)
            self.model.pin(partition, name, [used[block] for block in ids])

    @precondition(lambda self: self.model.pins)
    @rule(data=st.data())
    def unpin(self, data: Any) -> None:
        partition, name = data.draw(st.sampled_from(sorted(self.model.pins)))
        self.blocks[partition].unpin(name)
        self.model.unpin(partition, name)

    # ---- equality

    @invariant()
    def books_balance(self) -> None:
        self.arbiter.check_invariants()
        self.ledger.audit()

    @invariant()
    def slabs_are_those_of_the_model(self) -> None:
        for slab, record in zip(self.model.slabs, self.ledger.records(), strict=True):
            assert (record.owner, record.state.name) == (slab.owner, slab.state)
            assert record.generation == slab.generation
            due = self.model.leases[slab.lease].epoch if slab.lease else 0
            assert record.lease_epoch == due
            for partition, blocks in enumerate(self.blocks):
                taken = slab.taken if slab.owner == partition else 0
                assert blocks.used(slab.index) == taken

    @invariant()
    def numbers_are_those_of_the_model(self) -> None:
        snapshot = self.arbiter.snapshot()
        assert snapshot.epoch == self.arbiter.epoch == self.model.epoch
        assert snapshot.unowned == len(self.model.unowned())
        for partition, got in enumerate(snapshot.partitions):
            assert got.held == len(self.model.held(partition))
            assert got.quarantined == len(self.model.of(partition, "QUARANTINED"))
            assert got.free_blocks == self.model.free_blocks(partition)
            assert got.used_blocks == self.model.used_blocks(partition)
            blocks = self.blocks[partition]
            assert blocks.cached_blocks == self.model.cached_blocks(partition)
            for slab in self.model.slabs:
                for block, references in slab.used.items() if slab.owner == partition else ():
                    assert blocks.references(block) == references
            lent = self.model.of(partition, "GRANTED")
            assert got.revocable_now == sum(slab.is_idle for slab in lent)
            assert got.in_revocation == len(self.model.of(partition, "REVOKING"))
            if got.is_live:
                candidates = self.arbiter.candidates(partition)
                assert [(c.slab, c.used, c.pins) for c in candidates] == [
                    (slab.index, slab.taken, slab.pins) for slab in lent
                ]


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(stateful_step_count=40)


@pytest.mark.slow
@pytest.mark.timeout(7200)  # half an hour on a busy machine
def test_a_million_random_operations_do_what_the_model_does() -> None:
    many = settings(max_examples=10_000, stateful_step_count=100)
    run_state_machine_as_test(MemoryMachine, settings=many)
