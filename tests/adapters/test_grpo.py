"""examples/grpo with real processes: workers of rose on a CPU, one borrowed from an engine."""

import json
import os
import subprocess
import sys
import time

import pytest

import rose
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights
from tests.adapters.test_trl_rollouts import LIMIT, trainer
from tests.load import load

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")
FAULTS_S = 600.0


@pytest.mark.timeout(900)
def test_no_completion_suffers_when_its_borrowed_worker_is_killed_stopped_or_revoked(
    repo, tmp_path, monkeypatch
) -> None:
    from rose.engines.transformers import load_model

    model = load_model("micro-policy", seed=0)
    model.save_pretrained(tmp_path)
    monkeypatch.syspath_prepend(repo / "examples" / "grpo")
    chaos = load(repo / "examples" / "grpo" / "chaos.py")
    of = trainer()
    of.model, of.eos_token_ids = model, [1]
    end_s = time.monotonic() + FAULTS_S
    with (
        rose.publish(trl_weights(model)) as publisher,
        chaos.Fleet(tmp_path, publisher, is_lending=True) as fleet,
        chaos.Chaos(fleet, seed=0) as disturbed,
    ):
        rollouts = TrlRollouts(TrlWeightTransfer(fleet.url, publisher))
        while disturbed.faults["kill"] < 2:
            assert time.monotonic() < end_s, disturbed.faults
            said = rollouts(["ab"] * 32, of)
            for ids in said["completion_ids"]:
                assert len(ids) == LIMIT or ids[-1] == 1
            assert set(said["staleness"]) == {0}
            of.state.global_step += 1
        assert fleet.tokens["borrowed"] > 0 < fleet.tokens["dedicated"]
    assert fleet.served["gave_back"] is None


@pytest.mark.timeout(1200)
def test_the_trainer_of_trl_learns_through_borrowed_workers(repo) -> None:
    pytest.importorskip("trl", minversion="1.16", reason="TRL is not here: `make learn-env`")
    done = subprocess.run(
        [sys.executable, "examples/grpo/train.py", "--arms", "borrowed", "--steps", "40"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["curve"][-1] > record["curve"][0] + 0.1
    assert record["tokens_lost"] == record["staleness_max"] == 0
    assert record["tokens_by_kind"]["borrowed"] > 0
    assert record["served"]["gave_back"] is None
