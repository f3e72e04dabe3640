"""The plain truth about slabs, leases and blocks: one list of slabs, and loops over all of it.

Which block ids an allocator picks among equally full slabs is its own affair: the model is told the
ids and checks that they were allowed.
"""

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
    used: set[int] = field(default_factory=set)
    aside: int = 0  # blocks that tickets hold
    pins: int = 0

    @property
    def taken(self) -> int:
        return len(self.used) + self.aside

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

    def free_in(self, slab: Slab) -> int:
        return len(self.ids(slab.owner, slab.index)) - slab.taken

    def free_blocks(self, partition: int) -> int:
        return sum(self.free_in(slab) for slab in self.open(partition))

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

    def grant(self, partition: int, n: int, *, ttl: int, epoch: int, lease: int) -> str | list[int]:
        if epoch != self.epoch:
            return "STALE_EPOCH"
        if n > self.headroom(partition):
            return "OVER_LIMIT"
        if n > len(self.unowned()):
            return "POOL_EMPTY"
        if n > self.spare(partition, len(self.unowned())):
            return "FLOOR"
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

    def revoke(
        self, partition: int, n: int, *, deadline: int, taker: int, preferred: list[int], name: int
    ) -> None:
        def order(slab: Slab) -> tuple[bool, int, int, int]:
            rank = preferred.index(slab.index) if slab.index in preferred else len(self.slabs)
            return (not slab.is_idle, 0 if slab.is_idle else rank, slab.taken, slab.index)

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
            self.close_tickets(slab)
            self.settle(slab)
            if self.epoch != epoch:
                self.epoch -= run[1] == slab.owner
                run = (lease, slab.owner)

    def close_tickets(self, slab: Slab) -> None:
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
        slab.owner, slab.state, slab.generation = NOBODY, "UNOWNED", slab.generation + 1
        slab.lease = slab.revocation = slab.aside = slab.pins = 0
        slab.used = set()

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
            self.revoke(
                partition, len(lent), deadline=self.now, taker=NOBODY, preferred=[], name=name
            )
        given = 0
        for slab in self.held(partition):
            if slab.state == "OWNED":
                self.close_tickets(slab)
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
        for slab, part in self.runs(partition, ids or []):
            self.check_fullest(partition, slab)
            assert not part & slab.used
            assert len(part) <= self.free_in(slab)
            slab.used |= part

    def runs(self, partition: int, ids: list[int]) -> list[tuple[Slab, set[int]]]:
        runs: list[tuple[Slab, set[int]]] = []
        for block in ids:
            slab = self.slab_with(partition, block)
            assert slab in self.open(partition), f"block {block} lies in no open slab"
            if not runs or runs[-1][0] is not slab:
                runs.append((slab, set()))
            assert block not in runs[-1][1]
            runs[-1][1].add(block)
        return runs

    def check_fullest(self, partition: int, chosen: Slab) -> None:
        least = min(self.free_in(slab) for slab in self.open(partition) if self.free_in(slab))
        assert self.free_in(chosen) == least, "a fuller slab had room"

    def may_free(self, partition: int, ids: list[int]) -> bool:
        slabs = [self.slab_with(partition, block) for block in ids]
        return len(set(ids)) == len(ids) and all(
            slab is not None and slab.owner == partition and block in slab.used
            for slab, block in zip(slabs, ids, strict=True)
        )

    def free(self, partition: int, ids: list[int]) -> None:
        touched = []
        for block in ids:
            slab = self.slab_with(partition, block)
            assert slab is not None
            slab.used.discard(block)
            if slab not in touched:
                touched.append(slab)
        for slab in touched:
            self.settle(slab)

    def accept_reserve(
        self, partition: int, name: int | None, n: int, aside: dict[int, int]
    ) -> None:
        """Check the answer to reserve(n), where slab s got aside[s] blocks more in use."""
        assert (name is None) == (n > self.free_blocks(partition))
        if name is None:
            assert not aside
            return
        assert sum(aside.values()) == n
        # The fullest first, and among equals those that were filled up: only the last was not.
        for index in sorted(aside, key=lambda s: (self.free_in(self.slabs[s]), -aside[s])):
            slab = self.slabs[index]
            assert slab in self.open(partition)
            self.check_fullest(partition, slab)
            slab.aside += aside[index]
        self.tickets[partition, name] = dict(aside)

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
            slab.used.add(block)
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
