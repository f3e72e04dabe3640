"""Who takes part in a transfer: the source, the replicas that receive, the relays between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rose.errors import InvalidArgument
from rose.transfer.plan.spec import ShardMap


@dataclass(frozen=True, slots=True)
class Source:
    """The ranks of a trainer.

    Args:
        cluster: where they are.
        shards: what each of them holds.
        ties: other names of tensors, and the names they go by. Who shares a storage need not be
            listed; copies that the trainer keeps equal, such as the embedding at both ends of a
            pipeline, must be.
    """

    cluster: str
    shards: ShardMap
    ties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    """The ranks of one engine; all commit together.

    Args:
        name: among all replicas and relays.
        cluster: where they are.
        shards: what each of them holds.
        converts: dtypes that it makes of others by itself, as (what crosses, what it keeps).
    """

    name: str
    cluster: str
    shards: ShardMap
    converts: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Relay:
    """A node that tiles land on before they fan out in its cluster.

    Args:
        name: among all replicas and relays.
        cluster: that it serves.
    """

    name: str
    cluster: str


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A rank of a replica, as the receiver of a tile."""

    cluster: str
    replica: str
    rank: int


def check_names(replicas: tuple[Replica, ...], relays: tuple[Relay, ...]) -> None:
    """Refuse two members of one name.

    Raises:
        InvalidArgument: the sentence names it.
    """
    seen: set[str] = set()
    for name in [*(one.name for one in replicas), *(one.name for one in relays)]:
        if name in seen:
            raise InvalidArgument(f"two replicas or relays have the name {name}")
        seen.add(name)
