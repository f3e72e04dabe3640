"""`rose transfer plan` as a user meets it: tables, files, sentences and exit statuses."""

from dataclasses import replace

import pytest

from rose.cli.main import main
from rose.transfer.plan.files import ShardFile, plan_from_json, shards_to_json
from rose_lab.numbers import size_text
from tests.transfer.plan.models import Model, flattened, sharded

MODEL = Model()
TIED = replace(MODEL, is_tied=True)


def run(capsys, *arguments):
    status = main(["transfer", "plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def write(tmp_path):
    def write_file(stem, made, /, **more):
        storages = tuple((rank, where, size) for (rank, where), size in made.storages.items())
        file = ShardFile(made.shards, **{"storages": storages, **more})
        path = tmp_path / f"{stem}.json"
        path.write_bytes(shards_to_json(file))
        return path

    return write_file


def rows(out):
    """Return the cells of every row of every table."""
    lines = [line.strip() for line in out.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_it_says_tiles_links_and_coverage(capsys, write, wide):
    source = write("trainer", sharded(MODEL, tp=4, pp=2), cluster="home")
    east = write("east", sharded(MODEL, tp=2), cluster="east")
    west = write("west", flattened(MODEL, world=3), name="flat", cluster="west")
    status, out, err = run(
        capsys, source, east, west, "--density", 1, "--bytes-per-change", 1, "--relays", 2
    )
    assert (status, err) == (0, "")
    said = {row[0]: row[1:] for row in rows(out)}
    assert said["elements"][0] == f"{MODEL.elements:,}"
    size = f"{MODEL.elements / 1024:.2f} KiB"
    for link in ("link home to east", "link home to west"):
        assert said[link][0] == size
        assert said[link][1] == "At a density of 1 and 1 bytes per change, each tile crosses once."
    assert said["source"] == ["8", "100 %", "100 %", "0"]
    assert said["replica east"] == ["2", "100 %", "100 %", "0"]
    assert said["replica flat"] == ["3", "100 %", "100 %", "0"]


def test_its_plan_is_written_and_is_what_it_says(capsys, tmp_path, write, wide):
    source, east = write("trainer", sharded(MODEL, tp=2)), write("east", sharded(MODEL, tp=4))
    plan = tmp_path / "plan.json"
    update = ("--density", 1, "--bytes-per-change", 1)
    status, out, _ = run(capsys, source, east, *update, "--plan", plan)
    assert status == 0
    made = plan_from_json(plan.read_bytes(), what="plan")
    said = {row[0]: row[1:] for row in rows(out)}
    assert (said["plan"][0], said["layout"][0]) == (made.plan_id[:16], made.layout_id[:16])
    assert said["tiles"][0] == f"{len(made.tiles):,}"
    assert made.cut.count == MODEL.elements
    assert said["link training to serving"][0] == size_text(MODEL.elements)


def test_without_relays_it_says_that_tiles_cross_again_and_again(capsys, write, wide):
    source = write("trainer", sharded(MODEL, tp=2))
    out = run(capsys, source, write("a", sharded(MODEL, tp=2)), "--relays", 0)[1]
    assert "each tile crosses once for each of its receivers." in out


def test_it_names_ties_computed_tensors_buffers_and_what_is_not_received(capsys, write, wide):
    made = sharded(TIED, tp=2)
    source = write("trainer", made)
    some = replace(
        made,
        pieces=[one for one in made.pieces if one.tensor != "model.norm.weight"],
        storages={**made.storages, (0, "cache"): 10},
    )
    computed = replace(some.shards, computed={"norm": "float32 of it"})
    storages = tuple((rank, where, size) for (rank, where), size in some.storages.items())
    path = write("east", some)
    path.write_bytes(shards_to_json(ShardFile(computed, storages=storages, buffers=("cache",))))
    status, out, _ = run(capsys, source, path)
    assert status == 0
    tie = "lm_head.weight = model.embed_tokens.weight"
    assert f"Tied at the source, and sent under one name: {tie}.\n" in out
    assert f"Tied at replica east, and sent under one name: {tie}.\n" in out
    assert "Computed at replica east, and changed by its loader only: norm (float32 of it)." in out
    assert (
        "Not covered at replica east (fine for buffers and computed tensors): "
        "16 elements of norm on rank 0, 16 elements of norm on rank 1, "
        "10 elements of cache on rank 0.\n" in out
    )
    assert "Replica east does not receive all elements of model.norm.weight.\n" in out


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot read "), (b"{", "cannot be read: "), (b'{"format": 9}', "has format 9")],
)
def test_an_invalid_file_is_refused_with_its_name(capsys, tmp_path, write, content, says):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    for arguments in ((path, write("a", sharded(MODEL))), (write("a", sharded(MODEL)), path)):
        status, out, err = run(capsys, *arguments)
        assert (status, out) == (2, "")
        assert says in err
        assert str(path) in err
        assert err.count("\n") == 1


def test_where_nothing_can_be_written_it_says_so_and_prints_nothing(capsys, tmp_path, write):
    source = write("a", sharded(MODEL))
    status, out, err = run(capsys, source, source, "--plan", tmp_path / "no" / "x.json")
    assert (status, out) == (2, "")
    assert "cannot write the plan" in err


def test_silently_uncovered_memory_is_refused(capsys, write):
    made = sharded(MODEL)
    path = write("east", replace(made, storages={**made.storages, (0, "cache"): 10}))
    status, out, err = run(capsys, write("trainer", made), path)
    assert (status, out) == (2, "")
    assert err == (
        f"rose: {path}: no piece describes 10 elements of cache on rank 0; add pieces, or list "
        f"the parameter as computed or as a buffer\n"
    )
