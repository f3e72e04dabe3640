"""What depends on when versions come out is run until it does not change any more."""

import numpy as np
import pytest

from rose_lab.sim.cluster.simulate import simulate_cluster
from rose_lab.sim.cluster.world import ClusterOutcome, ClusterWorld
from rose_lab.sim.scenario.loans import ServingGroups
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.study.run import run_arm
from tests.lab.sim.scenario.files import content, scenario

NOTHING = Inputs()
UPDATE = [{"kind": "revoke-during-update", "into": 0.5, "for_s": 3}]


class Counted:
    """Simulates, and keeps the worlds."""

    def __init__(self) -> None:
        self.worlds: list[ClusterWorld] = []

    def __call__(self, world: ClusterWorld) -> ClusterOutcome:
        self.worlds.append(world)
        return simulate_cluster(world)


def test_an_arm_that_depends_on_nothing_is_run_once() -> None:
    simulate = Counted()
    one = scenario()
    serving = ServingGroups(one, seed=1, inputs=NOTHING)
    run_arm(one, "rose-published", seed=1, inputs=NOTHING, serving=serving, simulate=simulate)
    assert len(simulate.worlds) == 1


def test_what_is_revoked_during_updates_is_revoked_during_those_of_the_last_run() -> None:
    simulate = Counted()
    slow = {"link_gbit_per_s": 0.5, "changed_share": 0.03}
    one = scenario(stress=UPDATE, network=slow, versions=3)
    made, outcome = run_arm(
        one,
        "rose",
        seed=1,
        inputs=NOTHING,
        serving=ServingGroups(one, seed=1, inputs=NOTHING),
        simulate=simulate,
    )
    assert len(simulate.worlds) > 1
    published_ms = outcome.jobs[0].published_ms
    worker = made.world.workers[-1]
    assert worker.lending is not None
    gone_ms = worker.lending.at_ms[worker.lending.kv_tokens == 0]
    # Every update but the last, after which nothing runs, is halfway when all is taken back.
    wanted = published_ms[:-1] + 0.5 * worker.update_ms
    assert all(np.abs(gone_ms - at_ms).min() < 1 for at_ms in wanted)
    assert outcome.tokens_lost == 0


@pytest.mark.parametrize("mode", ["synchronous", "one-step-off"])
def test_the_trainer_s_gpus_never_roll_out_while_it_learns(mode: str) -> None:
    one = scenario(
        jobs=[{**scenario_job(), "mode": mode, "max_staleness": int(mode != "synchronous")}],
        versions=3,
    )
    made, outcome = run_arm(
        one,
        "training-gpus",
        seed=1,
        inputs=NOTHING,
        serving=ServingGroups(one, seed=1, inputs=NOTHING),
    )
    (job,) = outcome.jobs
    lending = made.world.workers[-1].lending
    assert lending is not None
    # The settled timeline is free of what the trainer had in the run before, which is this one.
    for at_ms in job.published_ms:
        learning_ms = at_ms - np.array([19_990.0, 10_000.0, 10.0])
        row = np.searchsorted(lending.at_ms, learning_ms, side="right") - 1
        assert (lending.share[row] == 0).all()
    assert lending.share.max() == 1


def scenario_job() -> dict[str, object]:

    return content()["jobs"][0]
