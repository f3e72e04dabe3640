"""The plain truth about slabs, leases and blocks: one list of slabs, and loops over all of it.

Which block ids an allocator picks among equally full slabs is its own affair: the model is told the
ids and checks that they were allowed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

NOBODY = -1


@dataclass
class Slab:
    index: int
    owner: int = NOBODY
    state: str = "UNOWNED"
    generation: int = 0
    lease: int = 0
    revocation: int = 0
    used: dict[int, int] = field(default_factory=dict)  # references by block
    cached: set[int] = field(default_factory=set)
    cached_in: str = ""  # the namespace of all that is cached here
    aside: int = 0  # blocks that tickets hold
    targets: set[int] = field(default_factory=set)  # blocks that others move to
    moving: int = 0  # blocks that move out; it gives none until the last is gone
    pins: int = 0

    @property
    def taken(self) -> int:
        return len(self.used) + self.aside + len(self.targets)

    @property
    def is_idle(self) -> bool:
        return self.taken == 0 and self.pins == 0


@dataclass
class Tenant:
    reserve: int
    limit: int
    block_bytes: int
    origin: int
    is_live: bool = True
    namespace: str = ""
    blocks_by_key: dict[tuple[str, int], int] = field(default_factory=dict)
    eviction: list[int] = field(default_factory=list)  # slabs with cached blocks, the next first

    def key_of(self, block: int) -> tuple[str, int] | None:
        return next((key for key, at in self.blocks_by_key.items() if at == block), None)

    def unpublish(self, block: int) -> None:
        key = self.key_of(block)
        if key is not None:
            del self.blocks_by_key[key]

    def touch(self, slab: int) -> None:
        if slab in self.eviction:
            self.eviction.remove(slab)
        self.eviction.append(slab)


@dataclass
class Move:
    from_block: int
    from_slab: tuple[int, int]  # its index and its generation
    to_slab: tuple[int, int]


@dataclass
class Lease:
    partition: int
    epoch: int
    expires: int
    is_fenced: bool = False


@dataclass
class Revocation:
    partition: int
    taker: int
    deadline: int
    wanted: int
    returned: int = 0
    fenced: int = 0


class MemoryModel:
    def __init__(self, *, slab_bytes: int, slab_count: int, header_slabs: int) -> None:
        self.slab_bytes = slab_bytes
        self.header_slabs = header_slabs
        self.slabs = [Slab(index) for index in range(slab_count)]
        self.tenants: list[Tenant] = []
        self.leases: dict[int, Lease] = {}
        self.revocations: dict[int, Revocation] = {}
        self.tickets: dict[tuple[int, int], dict[int, int]] = {}
        self.pins: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.moves: dict[tuple[int, int], Move] = {}  # by partition and target
        self.epoch = 1
        self.now = 0

    # ---- numbers

    def of(self, partition: int, *states: str) -> list[Slab]:
        return [slab for slab in self.slabs if slab.owner == partition and slab.state in states]

    def held(self, partition: int) -> list[Slab]:
        return self.of(partition, "OWNED", "GRANTED", "REVOKING")

    def open(self, partition: int) -> list[Slab]:
        return self.of(partition, "OWNED", "GRANTED")

    def unowned(self) -> list[Slab]:
        return self.of(NOBODY, "UNOWNED")

    def claims(self, partition: int) -> int:
        return len(self.held(partition)) + len(self.of(partition, "QUARANTINED"))

    def headroom(self, partition: int) -> int:
        tenant = self.tenants[partition]
        return max(0, tenant.limit - self.claims(partition)) if tenant.is_live else 0

    def spare(self, asking: int, unowned: int) -> int:
        for other, tenant in enumerate(self.tenants):
            if other != asking and tenant.is_live:
                unowned -= max(0, tenant.reserve - self.claims(other))
        return max(0, unowned)

    def ids(self, partition: int, slab: int) -> list[int]:
        """Return every id whose bytes lie wholly inside the slab, by looking at each."""
        tenant = self.tenants[partition]
        begin = (self.header_slabs + slab) * self.slab_bytes
        end = begin + self.slab_bytes
        found, index = [], 0
        while tenant.origin + index * tenant.block_bytes < end:
            at = tenant.origin + index * tenant.block_bytes
            if begin <= at and at + tenant.block_bytes <= end:
                found.append(index)
            index += 1
        return found

    def slab_with(self, partition: int, block: int) -> Slab | None:
        for slab in self.slabs:
            if block in self.ids(partition, slab.index):
                return slab
        return None

    def not_taken(self, slab: Slab) -> int:
        return len(self.ids(slab.owner, slab.index)) - slab.taken

    def free_in(self, slab: Slab) -> int:
        return 0 if slab.moving else self.not_taken(slab) - len(slab.cached)

    def free_blocks(self, partition: int) -> int:
        return sum(self.free_in(slab) + len(slab.cached) for slab in self.open(partition))

    def cached_blocks(self, partition: int) -> int:
        return sum(len(slab.cached) for slab in self.open(partition))

    def used_blocks(self, partition: int) -> int:
        return sum(slab.taken for slab in self.held(partition))

    # ---- own memory

    def add(self, tenant: Tenant) -> None:
        self.tenants.append(tenant)

    def take(self, partition: int, n: int) -> list[int]:
        n = min(n, self.headroom(partition), self.spare(partition, len(self.unowned())))
        taken = self.unowned()[:n]
        for slab in taken:
            slab.owner, slab.state = partition, "OWNED"
        self.epoch += bool(taken)
        return [slab.index for slab in taken]

    def give_back(self, partition: int, n: int) -> int:
        n = min(n, len(self.held(partition)) - self.tenants[partition].reserve)
        idle = [slab for slab in self.of(partition, "OWNED") if slab.is_idle]
        given = idle[::-1][: max(n, 0)]
        for slab in given:
            self.clear(slab)
        self.epoch += bool(given)
        return len(given)

    # ---- loans

    def grant(self, partition: int, n: int, *, ttl: int, lease: int) -> str | list[int]:
        if n > self.headroom(partition):
            return "OVER_LIMIT"
        if n > len(self.unowned()):
            return "POOL_EMPTY"
        if n > self.spare(partition, len(self.unowned())):
            return "AT_RISK"
        self.epoch += 1
        granted = self.unowned()[:n]
        for slab in granted:
            slab.owner, slab.state, slab.lease = partition, "GRANTED", lease
        self.leases[lease] = Lease(partition, self.epoch, self.now + ttl)
        return [slab.index for slab in granted]

    def slabs_of_lease(self, lease: int, *states: str) -> list[Slab]:
        return [slab for slab in self.slabs if slab.lease == lease and slab.state in states]

    def renew(self, lease_id: int, *, epoch: int, ttl: int) -> str:
        lease = self.leases.get(lease_id)
        if lease is None or not self.slabs_of_lease(lease_id, "GRANTED", "REVOKING"):
            return "OVER"
        if epoch != lease.epoch:
            return "STALE_EPOCH"
        if lease.is_fenced or lease.expires <= self.now:
            return "OVER"
        if not self.slabs_of_lease(lease_id, "GRANTED"):
            return "REVOKING"
        lease.expires = self.now + ttl
        return "RENEWED"

    def expire(self, *, grace: int, first_id: int) -> list[int]:
        for revocation in list(self.revocations):
            self.poll(revocation)
        started = []
        for lease_id, lease in self.leases.items():
            victims = self.slabs_of_lease(lease_id, "GRANTED")
            if lease.expires <= self.now and victims:
                started.append(first_id + len(started))
                self.revocations[started[-1]] = Revocation(
                    lease.partition, NOBODY, self.now + grace, len(victims)
                )
                self.begin(started[-1], victims)
        return started

    # ---- taking back

    def revoke(self, partition: int, n: int, *, deadline: int, taker: int, name: int) -> None:
        def order(slab: Slab) -> tuple[bool, int, int]:
            return (not slab.is_idle, slab.taken, slab.index)

        victims = sorted(self.of(partition, "GRANTED"), key=order)[:n]
        self.revocations[name] = Revocation(partition, taker, deadline, n)
        self.begin(name, victims)

    def begin(self, name: int, victims: list[Slab]) -> None:
        """Revoke; neighbours of one lease that go home to one owner are a single move."""
        run: tuple[int, int | None] = (0, None)  # the lease at hand, and where its last slab went
        for slab in victims:
            slab.state, slab.revocation = "REVOKING", name
            lease, epoch = slab.lease, self.epoch
            if run[0] != lease:
                run = (lease, None)
            self.close(slab)
            self.settle(slab)
            if self.epoch != epoch:
                self.epoch -= run[1] == slab.owner
                run = (lease, slab.owner)

    def close(self, slab: Slab) -> None:
        """Take away what holds no data, and all keys."""
        self.forget_slab(slab)
        slab.aside = 0
        for (partition, _), aside in self.tickets.items():
            if partition == slab.owner:
                aside.pop(slab.index, None)

    def settle(self, slab: Slab) -> None:
        """Hand a slab over that is on its way back and idle."""
        if not slab.is_idle:
            return
        if slab.state == "QUARANTINED":
            self.release(slab)
        if slab.state != "REVOKING":
            return
        revocation = self.revocations[slab.revocation]
        revocation.returned += 1
        self.clear(slab)
        self.epoch += 1
        taker = revocation.taker
        if taker != NOBODY and self.headroom(taker) and self.spare(taker, len(self.unowned())):
            slab.owner, slab.state = taker, "OWNED"

    def release(self, slab: Slab) -> None:
        self.clear(slab)
        self.epoch += 1

    def clear(self, slab: Slab) -> None:
        self.forget_slab(slab)
        slab.owner, slab.state, slab.generation = NOBODY, "UNOWNED", slab.generation + 1
        slab.lease = slab.revocation = slab.aside = slab.pins = slab.moving = 0
        slab.used, slab.targets = {}, set()

    def pending(self, name: int) -> list[Slab]:
        return [slab for slab in self.slabs if slab.revocation == name and slab.state == "REVOKING"]

    def poll(self, name: int) -> tuple[int, int, int, int]:
        revocation = self.revocations[name]
        if revocation.deadline <= self.now:
            for slab in self.pending(name):
                revocation.fenced += 1
                self.leases[slab.lease].is_fenced = True
                self.quarantine(slab)
        pending = len(self.pending(name))
        return revocation.wanted, revocation.returned, pending, revocation.fenced

    def quarantine(self, slab: Slab) -> None:
        self.forget_slab(slab)
        slab.state, slab.lease, slab.revocation = "QUARANTINED", 0, 0
        self.epoch += 1

    def prove(self, partition: int) -> int:
        late = self.of(partition, "QUARANTINED")
        for slab in late:
            self.release(slab)
        return len(late)

    def drop(self, partition: int, *, name: int) -> None:
        if not self.tenants[partition].is_live:
            return
        lent = self.of(partition, "GRANTED")
        if lent:
            self.revoke(partition, len(lent), deadline=self.now, taker=NOBODY, name=name)
        given = 0
        for slab in self.held(partition):
            if slab.state == "OWNED":
                self.close(slab)
            if slab.revocation:
                self.revocations[slab.revocation].fenced += 1
                self.leases[slab.lease].is_fenced = True
            if slab.is_idle:
                self.clear(slab)
                given += 1
            else:
                self.quarantine(slab)
        self.epoch += bool(given)
        self.tenants[partition].is_live = False

    # ---- blocks

    def accept_alloc(self, partition: int, n: int, ids: list[int] | None) -> None:
        """Check the answer to alloc(n), and remember it."""
        assert (ids is None) == (n > self.free_blocks(partition))
        for slab, block in self.accept_taken(partition, ids or []):
            slab.used[block] = 1

    def accept_taken(self, partition: int, ids: list[int]) -> Iterator[tuple[Slab, int]]:
        """Check that each id was allowed at its turn; the caller puts it where it belongs."""
        slab: Slab | None = None
        for block in ids:
            if slab is None or not self.free_in(slab):
                if not any(map(self.free_in, self.open(partition))):
                    self.evict_oldest(partition)
                slab = self.slab_with(partition, block)
                assert slab in self.open(partition), f"block {block} lies in no open slab"
                assert slab is not None
                self.check_fullest(partition, slab)
            assert block in self.ids(partition, slab.index)
            assert self.free_in(slab) > 0
            assert block not in slab.cached | slab.targets | set(slab.used)
            yield slab, block

    def check_fullest(self, partition: int, chosen: Slab) -> None:
        givers = [slab for slab in self.open(partition) if self.free_in(slab)]
        assert chosen in givers
        assert self.not_taken(chosen) == min(map(self.not_taken, givers)), "a fuller slab had room"

    def may_free(self, partition: int, ids: list[int]) -> bool:
        slabs = [self.slab_with(partition, block) for block in ids]
        return all(
            slab is not None
            and slab.owner == partition
            and slab.used.get(block, 0) >= ids.count(block)
            for slab, block in zip(slabs, ids, strict=True)
        )

    def free(self, partition: int, ids: list[int]) -> None:
        touched: list[Slab] = []
        for block in ids:
            self.owned_slab(partition, block).used[block] -= 1
        for block in dict.fromkeys(ids):
            slab = self.owned_slab(partition, block)
            if slab.used[block] == 0:
                del slab.used[block]
                self.keep_or_forget(partition, slab, block)
            # A slab goes when its last block does.
            touched = [one for one in touched if one is not slab] + [slab]
        for slab in touched:
            self.settle(slab)

    def owned_slab(self, partition: int, block: int) -> Slab:
        slab = self.slab_with(partition, block)
        assert slab is not None
        assert slab.owner == partition
        return slab

    # ---- references and keys

    def may_share(self, partition: int, ids: list[int]) -> bool:
        slabs = [self.slab_with(partition, block) for block in ids]
        return all(
            slab is not None
            and slab.owner == partition
            and (block in slab.used or block in slab.cached)
            for slab, block in zip(slabs, ids, strict=True)
        )

    def share(self, partition: int, ids: list[int]) -> None:
        tenant = self.tenants[partition]
        for block in ids:
            slab = self.owned_slab(partition, block)
            slab.used[block] = slab.used.get(block, 0) + 1
            if block not in slab.cached:
                continue
            slab.cached.remove(block)
            if not slab.cached:
                tenant.eviction.remove(slab.index)
            elif slab.cached_in == tenant.namespace:
                tenant.touch(slab.index)

    def enter_namespace(self, partition: int, name: str) -> None:
        tenant = self.tenants[partition]
        tenant.namespace = name
        tenant.eviction.sort(key=lambda index: self.slabs[index].cached_in == name)

    def publish(self, partition: int, ids: list[int], keys: list[int]) -> None:
        tenant = self.tenants[partition]
        for block, key in zip(ids, keys, strict=True):
            is_open = self.owned_slab(partition, block) in self.open(partition)
            if is_open and (tenant.namespace, key) not in tenant.blocks_by_key:
                tenant.unpublish(block)
                tenant.blocks_by_key[tenant.namespace, key] = block

    def lookup(self, partition: int, keys: list[int]) -> list[int]:
        tenant = self.tenants[partition]
        found: list[int] = []
        for key in keys:
            if (tenant.namespace, key) not in tenant.blocks_by_key:
                break
            found.append(tenant.blocks_by_key[tenant.namespace, key])
        return found

    def forget(self, partition: int, ids: list[int]) -> None:
        for block in ids:
            slab = self.owned_slab(partition, block)
            self.tenants[partition].unpublish(block)
            if block in slab.cached:
                self.uncache(partition, slab, {block})

    def forget_slab(self, slab: Slab) -> None:
        if slab.owner == NOBODY:
            return
        self.uncache(slab.owner, slab, set(slab.cached))
        for block in slab.used:
            self.tenants[slab.owner].unpublish(block)

    def uncache(self, partition: int, slab: Slab, blocks: set[int]) -> None:
        tenant = self.tenants[partition]
        for block in blocks:
            tenant.unpublish(block)
        slab.cached -= blocks
        if not slab.cached and slab.index in tenant.eviction:
            tenant.eviction.remove(slab.index)

    def evict_oldest(self, partition: int) -> None:
        slab = self.slabs[self.tenants[partition].eviction[0]]
        self.uncache(partition, slab, set(slab.cached))

    def keep_or_forget(self, partition: int, slab: Slab, block: int) -> None:
        """Cache a block that nobody uses any more, if it can be found again."""
        tenant = self.tenants[partition]
        key = tenant.key_of(block)
        if key is None or key[0] != tenant.namespace or slab.moving:
            tenant.unpublish(block)
            return
        if slab.cached_in != tenant.namespace:
            self.uncache(partition, slab, set(slab.cached))
            slab.cached_in = tenant.namespace
        slab.cached.add(block)
        tenant.touch(slab.index)

    # ---- evacuation

    def can_empty(self, slab: Slab, limit: int) -> bool:
        return (
            0 < len(slab.used) <= limit
            and not slab.aside
            and not slab.targets
            and not slab.pins
            and not slab.moving
            and slab.state != "QUARANTINED"
        )

    def accept_plan(
        self, partition: int, slabs: list[int], limit: int, plan: tuple[list[int], list[int]]
    ) -> None:
        """Check the plan to empty these slabs, and remember it."""
        sources = []
        for index in slabs:
            slab = self.slabs[index]
            if slab.owner == partition and self.can_empty(slab, limit):
                limit -= len(slab.used)
                self.uncache(partition, slab, set(slab.cached))
                slab.moving = len(slab.used)
                sources.append(slab)
        left = list(zip(*plan, strict=True))
        for slab in sources:
            if slab.moving > self.free_blocks(partition):
                slab.moving = 0
                continue
            part, left = left[: slab.moving], left[slab.moving :]
            assert [block for block, _ in part] == sorted(slab.used)
            targets = [block for _, block in part]
            for target, block in self.accept_taken(partition, targets):
                target.targets.add(block)
            self.remember_moves(partition, slab, part)
        assert not left

    def accept_sparse_plan(
        self, partition: int, limit: int, plan: tuple[list[int], list[int]]
    ) -> None:
        """Check the plan to empty what is sparse, and remember it."""
        givers = [slab for slab in self.open(partition) if slab.taken and not slab.moving]
        room = sum(self.free_in(slab) for slab in givers)
        pairs = list(zip(*plan, strict=True))
        sources = []
        for slab in sorted(givers, key=lambda slab: (slab.taken, slab.index)):
            if not self.can_empty(slab, slab.taken):
                continue
            room -= self.free_in(slab)
            if slab.taken > min(limit, room):
                break
            room -= slab.taken
            limit -= slab.taken
            self.uncache(partition, slab, set(slab.cached))
            sources.append(slab)
        assert [block for block, _ in pairs] == [b for slab in sources for b in sorted(slab.used)]
        for slab in sources:
            slab.moving = len(slab.used)
        for slab in sources:
            part, pairs = pairs[: slab.moving], pairs[slab.moving :]
            for _, block in part:
                target = self.owned_slab(partition, block)
                assert target in givers
                assert not target.moving
                assert self.free_in(target) > 0
                assert block not in target.cached | target.targets | set(target.used)
                target.targets.add(block)
            self.remember_moves(partition, slab, part)

    def remember_moves(self, partition: int, slab: Slab, pairs: list[tuple[int, int]]) -> None:
        for block, to in pairs:
            target = self.owned_slab(partition, to)
            target.pins += 1
            self.moves[partition, to] = Move(
                block, (slab.index, slab.generation), (target.index, target.generation)
            )

    def end_moves(self, partition: int, targets: list[int], *, is_done: bool) -> list[int]:
        return [self.end_move(partition, to, is_done=is_done) for to in targets]

    def end_move(self, partition: int, to: int, *, is_done: bool) -> int:
        """Return where the data is."""
        move = self.moves.pop((partition, to))
        source, target = self.slabs[move.from_slab[0]], self.slabs[move.to_slab[0]]
        has_source = source.owner == partition and source.generation == move.from_slab[1]
        has_target = target.owner == partition and target.generation == move.to_slab[1]
        has_moved = (
            is_done
            and has_source
            and has_target
            and move.from_block in source.used
            and target in self.open(partition)
        )
        if has_moved:
            tenant = self.tenants[partition]
            target.used[to] = source.used.pop(move.from_block)
            key = tenant.key_of(move.from_block)
            if key is not None:
                tenant.blocks_by_key[key] = to
        if has_target:
            target.targets.remove(to)
            target.pins -= 1
            self.settle(target)
        if has_source:
            source.moving -= 1
            self.settle(source)
        return to if has_moved else move.from_block

    def accept_reserve(
        self, partition: int, name: int | None, n: int, aside: dict[int, int]
    ) -> None:
        """Check the answer to reserve(n), where slab s got aside[s] blocks more in use."""
        assert (name is None) == (n > self.free_blocks(partition))
        if name is None:
            assert not aside
            return
        assert sum(aside.values()) == n
        self.tickets[partition, name] = dict(aside)
        aside = dict(aside)
        free = [slab for slab in self.open(partition) if self.free_in(slab)]
        # Cached blocks are touched only when every free one is taken.
        while sum(aside.values()) > sum(map(self.free_in, free)):
            for slab in free:
                aside[slab.index] -= self.free_in(slab)
                slab.aside += self.free_in(slab)
            self.evict_oldest(partition)
            free = [slab for slab in self.open(partition) if self.free_in(slab)]
        # The fullest first, and among equals those that were filled up: only the last was not.
        order = sorted(
            aside,
            key=lambda s: (
                self.not_taken(self.slabs[s]),
                aside[s] < self.free_in(self.slabs[s]),
            ),
        )
        for index in order:
            slab = self.slabs[index]
            if aside[index]:
                assert slab in self.open(partition)
                self.check_fullest(partition, slab)
                slab.aside += aside[index]

    def accept_commit(self, partition: int, name: int, n: int, ids: list[int] | None) -> None:
        aside = self.tickets[partition, name]
        assert (ids is None) == (n > sum(aside.values()))
        for block in ids or []:
            slab = self.slab_with(partition, block)
            assert slab is not None
            assert block not in slab.used
            assert aside.get(slab.index, 0) > 0
            aside[slab.index] -= 1
            slab.aside -= 1
            slab.used[block] = 1
        if n and ids and not sum(aside.values()):
            del self.tickets[partition, name]

    def cancel(self, partition: int, name: int) -> None:
        for index, count in self.tickets.pop((partition, name)).items():
            self.slabs[index].aside -= count

    # ---- pins

    def pin(self, partition: int, name: int, slabs: list[int]) -> None:
        for index in set(slabs):
            self.slabs[index].pins += 1
        held = [(index, self.slabs[index].generation) for index in sorted(set(slabs))]
        self.pins[partition, name] = held

    def unpin(self, partition: int, name: int) -> None:
        for index, generation in self.pins.pop((partition, name)):
            slab = self.slabs[index]
            if slab.generation == generation and slab.owner == partition:
                slab.pins -= 1
                self.settle(slab)
