"""`rose delta` as a user meets it: tables, files, pages, sentences and exit statuses."""

import re

import numpy as np
import pytest

from rose.checkpoints.checkpoint import open_checkpoint
from rose.cli.main import main
from rose.cli.runs import progress
from rose_lab.checkpoints.inspection import inspect
from rose_lab.cli.delta_report import density, seconds, seconds_text, size_text
from tests.checkpoints.made import bits, stepped, write_folder, write_safetensors

CUT_OFF = (
    "Of the tiles that FILE changes, 3 equal the base's and 1 the target's. Of all tiles, 0 equal "
    "neither. An apply may have been interrupted."
)
UP = "model.layers.{}.mlp.up_proj.weight"


def run(capsys, *arguments):
    status = main(["delta", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *arguments):
    """A command that the user can mend: one sentence, nothing else."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("rose: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def sides(tmp_path):
    generator = np.random.default_rng(7)
    old = {
        "model.embed_tokens.weight": ("BF16", bits(generator, 16, 100, 40)),
        **{UP.format(i): ("BF16", bits(generator, 16, 90, 40)) for i in range(3)},
        "model.norm.weight": ("F32", bits(generator, 32, 40)),
    }
    new = {name: (dtype, stepped(generator, row, 0.05)) for name, (dtype, row) in old.items()}
    new["model.norm.weight"] = old["model.norm.weight"]
    for side, content in (("old", old), ("new", new)):
        write_folder(tmp_path / side, {"model.safetensors": content}, index=False)
    return tmp_path / "old", tmp_path / "new"


def words(out):
    return [line.split() for line in out.splitlines()]


def test_table_says_what_changed_and_what_it_takes(capsys, sides):
    old, new = sides
    status, out, err = run(capsys, "inspect", old, new, "--tensors", "2")
    assert (status, err) == (0, "")
    inspection = inspect(open_checkpoint(old), open_checkpoint(new), advance=lambda _: None)
    changed = inspection.changed
    share = density(changed, 14840)
    assert out.startswith(f"{changed:,} of 14,840 elements change ({share}) in 5 tensors\n")
    assert ["norm", "1", "40", "0", "0", "%"] in words(out)
    assert sum(line[:1] == ["model.embed_tokens.weight"] for line in words(out)) == 1
    assert sum(line[:1] == [UP.format(i)] for line in words(out) for i in range(3)) == 1
    (dense,) = [line for line in words(out) if line[:1] == ["dense"]]
    assert dense[1:3] == ["29.06", "KiB"]
    (gap,) = [line for line in words(out) if line[:2] == ["rose", "GAP"]]
    assert gap[4] == f"{inspection.nbytes()['gap'] / changed:.2f}"
    for name in ("rose STRAT", "bound, i.i.d.", "bound, by exponent"):
        assert name in out


def test_no_cell_is_cut(capsys, monkeypatch, sides):
    monkeypatch.setenv("COLUMNS", "40")
    assert "…" not in run(capsys, "inspect", *sides)[1]


def test_a_page_is_written_whole(capsys, tmp_path, sides):
    file = tmp_path / "x.html"
    status, out, _ = run(capsys, "inspect", *sides, "--html", file)
    assert status == 0
    assert out.splitlines()[-1] == f"page: {file}"
    page = file.read_text()
    assert run(capsys, "inspect", *sides, "--html", file)[0] == 0
    assert file.read_text() == page
    # Self-contained: figures inline, and nothing is fetched.
    assert page.count("<svg") == 1
    assert not re.search(r"<(script|link|img|iframe)|url\(\s*['\"]?http|@import", page)
    for text in ("Bytes per change", "BF16, step in ULP"):
        assert text in page
    assert out.splitlines()[0] in page


def test_names_are_escaped_in_the_page_and_on_the_terminal(capsys, tmp_path):
    name = "<b>[red]x</b>.\x1b[31m"
    row = np.arange(9, dtype=np.uint16)
    for side, content in (("old", row), ("new", row + np.uint16(1))):
        write_safetensors(tmp_path / side, {name: ("BF16", content)})
    page = tmp_path / "x.html"
    status, out, _ = run(capsys, "inspect", tmp_path / "old", tmp_path / "new", "--html", page)
    assert status == 0
    assert "[red]x" in out
    assert "\x1b" not in out
    assert "<b>[red]" not in page.read_text()
    assert "&lt;b&gt;[red]x" in page.read_text()


def test_tensors_that_cannot_be_compared_are_named(capsys, tmp_path):
    row = ("BF16", np.arange(9, dtype=np.uint16))
    wide = ("F32", np.arange(9, dtype=np.uint32))
    gone = {f"gone.{i}": row for i in range(7)}
    old = write_safetensors(tmp_path / "old", {"a": row, "b": row, **gone})
    new = write_safetensors(tmp_path / "new", {"a": row, "b": wide, "c": row})
    status, out, _ = run(capsys, "inspect", old, new)
    assert status == 0
    names = ", ".join(f"gone.{i}" for i in range(5))
    assert f"not compared, only in the old checkpoint: {names} and 2 more\n" in out
    assert "not compared, only in the new checkpoint: c\n" in out
    assert "not compared, of another dtype or shape: b (BF16 [9] -> F32 [9])\n" in out
    other = write_safetensors(tmp_path / "other", {"a": wide})
    assert "have no tensor in common" in refused(capsys, "inspect", old, other)


@pytest.mark.parametrize("name", ["none/x", "dir"])
def test_page_that_cannot_be_written_is_one_sentence(capsys, tmp_path, sides, name):
    (tmp_path / "dir").mkdir()
    there = sorted(tmp_path.iterdir())
    assert "cannot write" in refused(capsys, "inspect", *sides, "--html", tmp_path / name)
    assert sorted(tmp_path.iterdir()) == there


def test_delta_file_goes_there_and_back(capsys, tmp_path, sides):
    old, new = sides
    (old / "config.json").write_text("{}")
    file, out, back = tmp_path / "x.delta", tmp_path / "out", tmp_path / "back"
    status, said, err = run(capsys, "make", old, new, "-o", file)
    assert (status, err) == (0, "")
    assert said.startswith(f"{file}: ")
    inspection = inspect(open_checkpoint(old), open_checkpoint(new), advance=lambda _: None)
    assert said.endswith(f"; {inspection.changed:,} elements change\n")
    status, said, _ = run(capsys, "apply", old, file, "-o", out)
    assert status == 0
    assert (
        said
        == f"{out}: written\ncopied from {old}, because a delta has tensors only: config.json\n"
    )
    name = "model.safetensors"
    assert (out / name).read_bytes() == (new / name).read_bytes()
    assert run(capsys, "undo", out, file, "-o", back)[0] == 0
    assert (back / name).read_bytes() == (old / name).read_bytes()
    for path, what in ((old, "the base"), (new, "the target"), (out, "the target")):
        assert run(capsys, "verify", path, file) == (0, f"{path} is {what} of {file}.\n", "")
    assert run(capsys, "apply", back, file, "--in-place")[:2] == (0, f"{back}: changed in place\n")
    assert (back / name).read_bytes() == (new / name).read_bytes()
    assert run(capsys, "undo", back, file, "--in-place")[0] == 0
    assert (back / name).read_bytes() == (old / name).read_bytes()


def test_make_says_that_a_delta_has_no_headers(capsys, tmp_path):
    row = ("BF16", np.arange(9, dtype=np.uint16))
    old = write_safetensors(tmp_path / "old", {"a": row}, {"step": "1"})
    new = write_safetensors(tmp_path / "new", {"a": row}, {"step": "2"})
    status, out, _ = run(capsys, "make", old, new, "-o", tmp_path / "x")
    assert status == 0
    line = f"{tmp_path / 'x'} changes tensors only; {old} and {new} also differ in file names or "
    assert out.splitlines()[1:] == [f"{line}headers."]
    other = write_safetensors(tmp_path / "other", {"b": row})
    assert "'a' is not the same tensor" in refused(capsys, "make", old, other, "-o", tmp_path / "y")


def test_verify_says_why_it_is_neither(capsys, tmp_path, sides):
    old, new = sides
    file = tmp_path / "x.delta"
    assert run(capsys, "make", old, new, "-o", file)[0] == 0
    # As a machine leaves it that stops in the middle of an apply in place: the first tensor is new.
    mixed = bytearray((old / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(mixed[:8], "little")
    mixed[header : header + 8000] = (new / "model.safetensors").read_bytes()[header : header + 8000]
    (old / "model.safetensors").write_bytes(mixed)
    status, out, err = run(capsys, "verify", old, file)
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"{old} is neither the base nor the target of {file}.",
        "Not the base: 'model.embed_tokens.weight' differs.",
        f"Not the target: '{UP.format(0)}' differs.",
        CUT_OFF,
    ]


def test_bad_input_is_one_sentence_and_leaves_nothing(capsys, tmp_path, sides):
    old, new = sides
    file, out = tmp_path / "x.delta", tmp_path / "out"
    assert run(capsys, "make", old, new, "-o", file)[0] == 0
    there = sorted(tmp_path.iterdir())
    assert "does not exist" in refused(capsys, "inspect", tmp_path / "none", new)
    assert "does not exist" in refused(capsys, "make", old, tmp_path / "none", "-o", out)
    assert "is not a sound safetensors file" in refused(capsys, "inspect", file, new)
    assert "does not begin with a sound update" in refused(
        capsys, "apply", old, old / "model.safetensors", "-o", out
    )
    assert "either -o PATH or --in-place" in refused(capsys, "apply", old, file)
    assert "either -o PATH or --in-place" in refused(
        capsys, "undo", old, file, "-o", out, "--in-place"
    )
    assert "is not the" in refused(capsys, "apply", new, file, "-o", out)
    assert "is not the" in refused(capsys, "undo", old, file, "--in-place")
    assert "exists" in refused(capsys, "apply", old, file, "-o", new)
    assert "cannot read" in refused(capsys, "verify", old, tmp_path / "none")
    file.write_bytes(file.read_bytes()[:-1])
    assert "cannot be used" in refused(capsys, "verify", old, file)
    assert sorted(tmp_path.iterdir()) == there


def test_progress_is_for_people_only(capsys, monkeypatch):
    with progress("comparing", 100) as advance:
        advance(50)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("comparing", 100) as advance:
        advance(100)
    captured = capsys.readouterr()
    assert "comparing" in captured.err
    assert captured.out == ""


def test_numbers_have_units():
    assert seconds(125_000_000, 1) == 1.0
    assert [seconds_text(one) for one in (2e-6, 0.0123, 4.0)] == ["2.00 µs", "12.3 ms", "4.00 s"]
    assert [size_text(one) for one in (5, 2048, 3 << 20, 5 << 30)] == [
        "5 B",
        "2.00 KiB",
        "3.00 MiB",
        "5.00 GiB",
    ]
    assert density(1, 0) == "-"
