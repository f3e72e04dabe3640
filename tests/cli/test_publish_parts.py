"""Plans: ranks publish what they own, relays share what lands, whoever is killed."""

import runpy
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rose.checkpoints.checkpoint import open_checkpoint
from rose.cli.main import main
from rose.transfer.plan import (
    LocalView,
    Piece,
    Region,
    RelayNode,
    Replica,
    ShardMap,
    SourceRanks,
    TensorSpec,
    make_plan,
)
from rose.transfer.plan.files import plan_to_json
from tests.cli.weight_programs import SHAPES, TOKEN, Program, make_checkpoint

NAMES = {"layer.weight": "bfloat16", "layer.bias": "float32"}


def shards(ranks: int) -> ShardMap:
    """Return who holds what: rows of the weight are split, the bias is the last rank's alone."""
    tensors = {name: TensorSpec(name, SHAPES[name][1], dtype) for name, dtype in NAMES.items()}
    rows, columns = SHAPES["layer.weight"][1]
    share = rows // ranks
    pieces = [
        Piece(
            "layer.weight",
            Region((rank * share, 0), (share, columns)),
            rank,
            LocalView("layer.weight", 0, (columns, 1)),
        )
        for rank in range(ranks)
    ]
    bias = Region((0,), SHAPES["layer.bias"][1])
    pieces.append(Piece("layer.bias", bias, ranks - 1, LocalView("layer.bias", 0, (1,))))
    return ShardMap(tensors, tuple(pieces), {})


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    made = make_plan(SourceRanks("training", shards(2)), [Replica("single", "serving", shards(1))])
    path = tmp_path / "plan.json"
    path.write_bytes(plan_to_json(made))
    return path


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def assert_alike(one: Path, other: Path) -> None:
    mine, its = open_checkpoint(one).tensors, open_checkpoint(other).tensors
    for name in NAMES:
        count = mine[name].count
        assert np.array_equal(mine[name].units(0, count), its[name].units(0, count))


def test_ranks_publish_what_they_own_and_one_that_was_killed_is_begun_with_again(
    tmp_path: Path, plan_path: Path
) -> None:
    made = [make_checkpoint(tmp_path / "v0", 0)]
    for seed in (1, 2, 3):
        made.append(make_checkpoint(tmp_path / f"v{seed}", seed, base=made[-1]))
    watched, out = tmp_path / "watched", tmp_path / "out"
    watched.mkdir()
    there = free_address()
    common = ["publish", made[0], "--watch", watched, "--plan", plan_path]
    ranked = [*common, "--rank", 1, "--listen", there]
    with Program(*common, "--rank", 0, "--part", there) as publisher:  # which waits for the part
        with Program(*ranked) as part:
            assert part.wait_for("serving")["rank"] == 1
            address = publisher.wait_for("serving")["address"]
            whose = ["--plan", plan_path, "--replica", "single", "--rank", 0]
            with Program("receive", "--upstream", address, "--to", out, *whose) as receiver:
                receiver.wait_for("committed", n=1)
                assert_alike(out, made[0])
                inside = made[1].rename(watched / "v1")
                publisher.wait_for("published", n=2)
                assert not receiver.wait_for("committed", n=2)["is_snapshot"]
                assert_alike(out, inside)
                part.stop(signal.SIGKILL)
                inside = made[2].rename(watched / "v2")
                assert "v2 is not published" in publisher.wait_for("trouble")["reason"]
                with Program(*ranked) as heir:
                    heir.wait_for("serving")
                    begun = publisher.wait_for("begun")["n"]
                    published = publisher.wait_for("published", checkpoint="v2")["n"]
                    assert published > begun > 2
                    receiver.wait_for("committed", n=published)
                    assert_alike(out, inside)
                    assert heir.stop() == (0, "")
                assert receiver.stop() == (0, "")
        assert publisher.stop() == (0, "")


def test_receiver_of_a_rank_changes_no_tile_of_another(tmp_path: Path) -> None:
    mine, its = make_checkpoint(tmp_path / "mine", 0), make_checkpoint(tmp_path / "its", 1)
    made = make_plan(SourceRanks("training", shards(1)), [Replica("pair", "serving", shards(2))])
    path = tmp_path / "plan.json"
    path.write_bytes(plan_to_json(made))
    before = weight_of(mine)
    with Program("publish", its, "--plan", path, "--once") as publisher:
        where = ["--upstream", publisher.wait_for("serving")["address"], "--to", mine]
        whose = ["--plan", path, "--replica", "pair", "--rank", 0, "--once"]
        with Program("receive", *where, *whose) as receiver:
            receiver.wait_for("committed", n=1)
            assert receiver.end() == (0, "")
        assert publisher.end() == (0, "")  # it was told to end when a receiver has it
    half = before.size // 2
    assert np.array_equal(weight_of(mine)[:half], weight_of(its)[:half])
    assert np.array_equal(weight_of(mine)[half:], before[half:])


def weight_of(checkpoint: Path) -> np.ndarray:
    tensor = open_checkpoint(checkpoint).tensors["layer.weight"]
    return tensor.units(0, tensor.count).copy()


def test_relays_share_the_tiles_and_one_stands_in_for_the_other(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "v0", 0)
    fresh = make_checkpoint(tmp_path / "v1", 1, base=base)
    watched, out, path = tmp_path / "watched", tmp_path / "out", tmp_path / "plan.json"
    watched.mkdir()
    made = make_plan(
        SourceRanks("training", shards(1)),
        [Replica("single", "serving", shards(1))],
        [RelayNode("one", "serving"), RelayNode("two", "serving")],
        tile_elements=1 << 17,
    )
    assert {landing.relay for tile in made.tiles for landing in tile.landings} == {"one", "two"}
    path.write_bytes(plan_to_json(made))
    planned = ["--plan", path]
    with Program("publish", base, "--watch", watched, *planned) as publisher:
        above = ["--upstream", publisher.wait_for("serving")["address"], *planned]
        where = ["--cluster", "serving", "--name"]
        with (
            Program("relay", *above, *where, "one") as first,
            Program("relay", *above, *where, "two") as second,
        ):
            here = [one.wait_for("serving")["address"] for one in (first, second)]
            options = ["--upstream", here[0], "--upstream", here[1], "--to", out, *planned]
            with Program("receive", *options) as receiver:
                receiver.wait_for("committed", n=1)
                assert_alike(out, base)
                first.stop(signal.SIGKILL)
                inside = fresh.rename(watched / "v1")
                receiver.wait_for("committed", n=2)
                assert_alike(out, inside)
                assert receiver.stop() == (0, "")


def test_ranks_and_parts_that_do_not_go_together_are_one_sentence(
    tmp_path: Path,
    plan_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROSE_TOKEN", TOKEN)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    here = make_checkpoint(tmp_path / "v0", 0)
    planned = ["--plan", plan_path]
    for sentence, *options in (
        ("need a --plan", "--rank", "1"),
        ("need a --plan", "--part", "127.0.0.1:1"),
        ("has 2 ranks", "--rank", "2", *planned),
        ("only rank 0 takes --part", "--rank", "1", "--part", "127.0.0.1:1", *planned),
        ("each other rank, 1 in all, got 0", "--rank", "0", *planned),
        ("loopback", "--rank", "0", "--part", "10.0.0.1:1", *planned),
    ):
        assert main([str(one) for one in ("publish", here, *options)]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1


def test_plan_of_the_example_sends_each_rank_its_part(tmp_path: Path, repo: Path) -> None:
    runpy.run_path(str(repo / "examples" / "plan.py"))["main"](tmp_path)
    plan = tmp_path / "plan.json"
    maps = [str(tmp_path / f"{name}.json") for name in ("trainer", "tp2")]
    assert main(["transfer", "plan", *maps, "--relays", "0", "--plan", str(plan)]) == 0
    with Program("publish", tmp_path / "checkpoint", "--plan", plan) as publisher:
        above = ["--upstream", publisher.wait_for("serving")["address"], "--plan", plan]
        for rank, rows in enumerate((slice(None, 128), slice(128, None))):
            to = ["--to", tmp_path / f"rank{rank}", "--replica", "tp2", "--rank", rank]
            with Program("receive", *above, *to, "--once") as receiver:
                receiver.wait_for("committed", n=1)
            there = load_file(tmp_path / "checkpoint" / "model.safetensors")["0.weight"]
            (file,) = (tmp_path / f"rank{rank}").glob("*.safetensors")
            assert torch.equal(load_file(file)["0.weight"][rows], there[rows])
