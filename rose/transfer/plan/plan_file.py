"""Plans as JSON: the maps of all members, from which the same plan is made again.

It is not imported by `rose.transfer.plan`, as it needs msgspec, of the extra `wire`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan.members import Relay, Replica, Source
from rose.transfer.plan.plan import Plan, make_plan
from rose.transfer.plan.shard_file import check_named, decoded

PLAN_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class _PlanFile:
    plan_id: str
    tile_elements: int
    source: Source
    replicas: tuple[Replica, ...]
    relays: tuple[Relay, ...]
    format: int = PLAN_FORMAT


def plan_to_json(plan: Plan) -> bytes:
    """Return the plan as the content of a file."""
    members = (plan.sources, plan.replicas, plan.relays)
    return msgspec.json.encode(_PlanFile(plan.plan_id, plan.tile_elements, *members))


def plan_from_json(content: bytes, *, what: str) -> Plan:
    """Read a plan: make it of its maps again.

    Raises:
        InvalidArgument: it is none, of another format, or too large.
        CorruptData: its maps make another plan than its identity names.
    """
    file = decoded(_PlanFile, content, what, reads=PLAN_FORMAT)
    for shards in (file.source.shards, *(replica.shards for replica in file.replicas)):
        check_named(shards, what)
    try:
        plan = make_plan(file.source, file.replicas, file.relays, tile_elements=file.tile_elements)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} is no plan: {error}") from None
    if plan.plan_id != file.plan_id:
        raise CorruptData(f"{what} is not the plan that its identity names")
    return plan
