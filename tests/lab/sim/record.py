"""Input and output of the scheduler in a simulation, in the types of production."""

from collections.abc import Sequence
from dataclasses import dataclass

from rose.scheduler.events import Action, Event
from rose_lab.sim.cluster.check_world import check_world
from rose_lab.sim.cluster.simulate import DEFAULT, SimOptions, native_world, new_core, outcome_of
from rose_lab.sim.cluster.world import ClusterOutcome, ClusterWorld


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the scheduler: with the same steps before it, the same events give the same.

    Args:
        now_ns: when.
        events: what it was told.
        actions: what it wanted done.
    """

    now_ns: int
    events: Sequence[Event]
    actions: Sequence[Action]


def record_cluster(
    world: ClusterWorld, options: SimOptions = DEFAULT
) -> tuple[ClusterOutcome, list[RecordedStep]]:
    """Run a world as `simulate_cluster` does, and keep all input and output of the scheduler.

    Raises:
        InvalidArgument: as `simulate_cluster`.
        InternalError: as `simulate_cluster`.
    """
    check_world(world)
    native = native_world(world, options, is_logged=True)
    found = native.run(new_core(world).native, options.on_progress)
    steps = [RecordedStep(now_ns, events, actions) for now_ns, events, actions in found["log"]]
    return outcome_of(found), steps
