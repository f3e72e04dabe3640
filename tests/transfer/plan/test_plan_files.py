"""Shard maps and plans as JSON: round trips, and files that are refused."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan import Replica, SourceRanks, make_plan
from rose.transfer.plan import files as files_module
from rose.transfer.plan.files import (
    ShardFile,
    plan_from_json,
    plan_to_json,
    shards_from_json,
    shards_to_json,
)
from tests.transfer.plan.models import Model, sharded
from tests.transfer.plan.random_maps import shard_maps, specs
from tests.transfer.plan.test_plan import PAIRS, RELAYS, plan_of

MADE = sharded(Model(layers=1), tp=2)
FILE = ShardFile(
    MADE.shards,
    "r",
    "east",
    tuple((rank, name, size) for (rank, name), size in MADE.storages.items()),
    ("cache",),
    {"w": "v"},
    frozenset({("bfloat16", "float8_e4m3fn")}),
)


def test_shard_map_survives_a_round_trip():
    content = shards_to_json(FILE)
    back = shards_from_json(content, what="x")
    assert back == FILE
    assert back.sizes == MADE.storages
    assert shards_to_json(back) == content


@given(specs().flatmap(shard_maps))
def test_any_shard_map_comes_back_as_it_was(shards):
    assert shards_from_json(shards_to_json(ShardFile(shards)), what="x").shards == shards


@pytest.mark.parametrize("name", PAIRS)
def test_plan_survives_a_round_trip(name):
    plan = plan_of(name, tile_elements=30)
    back = plan_from_json(plan_to_json(plan), what="x")
    assert back == plan
    assert back.plan_id == plan.plan_id


def changed(content, *path, to):
    """Return the file with one value replaced."""
    tree = json.loads(content)
    at = tree
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return json.dumps(tree).encode()


SHARDS = shards_to_json(FILE)
NAME = "model.norm.weight"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "x.json cannot be read: "),
        (b"[]", "x.json cannot be read: Expected `object`"),
        (b"\xff", "x.json cannot be read: "),
        (b"[" * 100_000, "x.json cannot be read: "),
        (b'{"format": 1, "more": ' + b"[" * 100_000, "x.json cannot be read: "),
        (b'{"format": 1}', "missing required field `shards`"),
        (changed(SHARDS, "format", to=2), "has format 2; this rose reads 1"),
        (changed(SHARDS, "shards", "pieces", 0, "rank", to="0"), r"pieces\[0\].rank"),
        (changed(SHARDS, "shards", "pieces", 0, "rank", to=1 << 80), "rank 12089258196"),
        (
            changed(SHARDS, "shards", "pieces", 0, "rank", to=-1),
            "x.json: the piece .* must have a rank from 0",
        ),
        (
            changed(SHARDS, "shards", "pieces", 0, "tensor", to="no"),
            "a piece of no, which the map does not list",
        ),
        (changed(SHARDS, "shards", "pieces", 0, "region", "shape", to=[0, 1]), "sizes >= 1, got"),
        (changed(SHARDS, "shards", "pieces", 0, "view", "strides", to=[1 << 60] * 2), "reaches be"),
        (changed(SHARDS, "shards", "tensors", NAME, "shape", to=[1 << 62]), "more than 2.48 elem"),
        (
            changed(SHARDS, "shards", "tensors", NAME, "name", to="no"),
            "no is listed under the name",
        ),
        (changed(SHARDS, "storages", to=[[0, "a", -1]]), "a storage of a negative size"),
        (changed(SHARDS, "storages", to=[[0, "a", 1], [0, "a", 1]]), "lists a storage twice"),
    ],
)
def test_invalid_shard_map_is_refused_in_one_sentence(content, says):
    with pytest.raises(InvalidArgument, match=says) as raised:
        shards_from_json(content, what="x.json")
    assert "\n" not in str(raised.value)


@given(st.binary(max_size=40), st.integers(0, len(SHARDS) - 1), st.integers(0, 40))
def test_damaged_files_are_read_or_refused(noise, at, behind):
    content = SHARDS[:at] + noise + SHARDS[at + behind :]
    try:
        back = shards_from_json(content, what="x")
    except InvalidArgument:
        return
    assert shards_from_json(shards_to_json(back), what="x") == back


def test_too_large_file_is_not_read(monkeypatch):
    monkeypatch.setattr(files_module, "FILE_BYTES_MAX", 1 << 20)
    with pytest.raises(InvalidArgument, match="x must have at most 1 MiB, got"):
        shards_from_json(b" " * ((1 << 20) + 1), what="x")


PLAN = plan_to_json(
    make_plan(SourceRanks("home", MADE.shards), [Replica("r", "east", MADE.shards)], RELAYS)
)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (changed(PLAN, "format", to=1), InvalidArgument, "has format 1; this rose reads 3"),
        (changed(PLAN, "tile_elements", to=0), InvalidArgument, "x.json is not a plan: tile_"),
        (changed(PLAN, "tile_elements", to=64), CorruptData, "make a plan with another plan_id"),
        (changed(PLAN, "relays", to=[]), CorruptData, "make a plan with another plan_id"),
        (changed(PLAN, "plan_id", to="0" * 64), CorruptData, "make a plan with another plan_id"),
        (changed(PLAN, "relays", 0, "name", to="r"), InvalidArgument, "have the name r"),
        (
            changed(PLAN, "source", "shards", "pieces", 0, "rank", to=-1),
            InvalidArgument,
            "must have a rank from 0",
        ),
        (changed(SHARDS, "format", to=3), InvalidArgument, "x.json cannot be read: "),
    ],
)
def test_invalid_plan_is_refused(content, kind, says):
    with pytest.raises(kind, match=says):
        plan_from_json(content, what="x.json")


def test_planning_needs_neither_msgspec_nor_torch_nor_grpc():
    code = "import sys, rose.transfer.plan; print({'msgspec', 'torch', 'grpc'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
