"""What `rose transfer plan` found, and its numbers as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rose.transfer.plan import Coverage, Plan, Traffic
from rose.units import ceil_div

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was asked about.

    Args:
        plan: the plan.
        traffic: of one update.
        source: what its map covers.
        replicas: what theirs cover, by name.
        density: share of the elements that the update changes.
        bytes_per_change: on the wire.
    """

    plan: Plan
    traffic: Traffic
    source: Coverage
    replicas: Mapping[str, Coverage]
    density: float
    bytes_per_change: float

    @property
    def elements(self) -> int:
        """Return how many cross, each counted once."""
        return sum(self.plan.counts)

    @property
    def tiles_min(self) -> int:
        """Return how many tiles of full size have room for all elements."""
        return ceil_div(self.elements, self.plan.tile_elements)

    def received(self, replica: str) -> int:
        """Return how many elements at least one rank of a replica receives."""
        return sum(
            tile.count
            for tile in self.plan.tiles
            if any(holder.replica == replica for holder in tile.receivers)
        )

    def unreceived(self, replica: str) -> list[str]:
        """Return the tensors that a replica does not receive, or not all of."""
        missing = (
            tile.tensor
            for tile in self.plan.tiles
            if all(holder.replica != replica for holder in tile.receivers)
        )
        return list(dict.fromkeys(missing))

    def nics(self) -> dict[str, dict[str, int]]:
        """Return bytes by NIC, for each kind of NIC and direction; idle ones have 0."""
        plan, moved = self.plan, self.traffic
        relays = [relay.name for relay in plan.relays]
        ranks = plan.sources.shards.ranks
        kinds = {
            "source, out": {f"rank {rank}": moved.sent.get(rank, 0) for rank in ranks},
            "relay, in": {name: moved.landed.get(name, 0) for name in relays},
            "relay, out": {name: moved.relayed.get(name, 0) for name in relays},
        }
        for replica in plan.replicas:
            loads = {f"rank {rank}": 0 for rank in replica.shards.ranks}
            kinds[f"replica {replica.name}, in"] = loads
        for holder, nbytes in moved.received.items():
            kinds[f"replica {holder.replica}, in"][f"rank {holder.rank}"] = nbytes
        return {kind: loads for kind, loads in kinds.items() if loads}


def planned_record(planned: Planned) -> dict[str, Any]:
    """Return everything that was found."""
    plan = planned.plan
    return {
        "format": FORMAT,
        "layout_id": plan.layout_id,
        "plan_id": plan.plan_id,
        "density": planned.density,
        "bytes_per_change": planned.bytes_per_change,
        "elements": planned.elements,
        "tiles": len(plan.tiles),
        "tiles_min": planned.tiles_min,
        "crossing_bytes": [
            {"from": one, "to": other, "bytes": nbytes}
            for (one, other), nbytes in sorted(planned.traffic.crossing.items())
        ],
        "fan_out_bytes": dict(planned.traffic.fan_out),
        "nic_bytes": planned.nics(),
        "source": _coverage(planned.source),
        "replicas": {name: _of_replica(planned, name) for name in planned.replicas},
    }


def _of_replica(planned: Planned, name: str) -> dict[str, Any]:
    received = {"received": planned.received(name), "unreceived": planned.unreceived(name)}
    return {**_coverage(planned.replicas[name]), **received}


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "ranks": len(coverage.shards.ranks),
        "elements": coverage.elements,
        "held": coverage.held,
        "unheld": dict(coverage.unheld),
        "storage": coverage.storage,
        "ties": dict(coverage.ties),
        "computed": dict(coverage.shards.computed),
        "uncovered": [
            {"rank": rank, "parameter": parameter, "elements": elements}
            for (rank, parameter), elements in coverage.uncovered.items()
        ],
    }
