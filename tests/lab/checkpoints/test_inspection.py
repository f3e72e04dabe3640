"""What an inspection says is what changed, and what the codecs really take."""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.checkpoints.checkpoint import open_checkpoint
from rose.errors import InvalidArgument
from rose.transfer import delta_pack
from rose.transfer.tensors import STORED_DTYPES
from rose_lab.checkpoints.dtype_counts import DtypeCounts
from rose_lab.checkpoints.inspection import (
    GAP,
    GAP_XOR_ZSTD,
    STRAT,
    Inspection,
    gap_xor_bytes,
    inspect,
)
from tests.checkpoints.made import (
    Content,
    bits,
    sparse_safetensors,
    stepped,
    write_folder,
    write_safetensors,
)

ROOT = Path(__file__).resolve().parents[3]


def entropy_bits(counts: Counter[Any]) -> float:
    total = sum(counts.values())
    return sum(one * math.log2(total / one) for one in counts.values())


def steps_of(old: list[int], new: list[int], width: int) -> list[int]:
    half = 1 << (width - 1)
    return [(b - a + half) % (2 * half) - half for a, b in zip(old, new, strict=True)]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3", "I8", "F64"])
def test_counts_are_those_of_a_plain_count(dtype: str) -> None:
    generator = np.random.default_rng(3)
    stored = STORED_DTYPES[dtype]
    width = 8 * stored.unit_bytes
    old = bits(generator, width, 5000)
    steps = generator.integers(-60, 61, 5000) * (generator.random(5000) < 0.3)
    new = old + steps.astype(old.dtype)
    counts = DtypeCounts(dtype)
    first, second = counts.add(old[:3000], new[:3000]), counts.add(old[3000:], new[3000:])
    positions = np.concatenate([first, 3000 + second])
    moves = steps_of(old.tolist(), new.tolist(), width)
    assert positions.tolist() == [i for i, move in enumerate(moves) if move]
    shift, bits_ = stored.exponent or (0, 0)
    exponents = [(one >> shift) % (1 << bits_) for one in old.tolist()]
    of_all = Counter(exponents)
    of_changed = Counter(e for e, move in zip(exponents, moves, strict=True) if move)
    assert counts.of_all.tolist() == [of_all[e] for e in range(1 << bits_)]
    assert counts.of_changed.tolist() == [of_changed[e] for e in range(1 << bits_)]
    sizes = [abs(move) for move in moves if move]
    assert counts.steps()["1"] == sizes.count(1)
    assert counts.steps()["5-8"] == sum(5 <= size <= 8 for size in sizes)
    assert counts.steps()["33-64"] == sum(size >= 33 for size in sizes)
    assert counts.steps()["> 64"] == 0
    # No step is above 64, so each is counted for itself, and the bounds are exact.
    where = Counter(move != 0 for move in moves)
    what = Counter(move for move in moves if move)
    assert counts.iid_bits() == pytest.approx(entropy_bits(where) + entropy_bits(what))
    by_class = 0.0
    for e in of_all:
        mine = [m for m, other in zip(moves, exponents, strict=True) if other == e]
        by_class += entropy_bits(Counter(m != 0 for m in mine))
        by_class += entropy_bits(Counter(m for m in mine if m))
    assert counts.class_bits() == pytest.approx(by_class)


@given(st.integers(1, (1 << 31)), st.booleans())
def test_large_steps_are_counted_once_and_cost_their_bits(size: int, is_down: bool) -> None:
    counts = DtypeCounts("I32")
    old = np.zeros(1, np.uint32)
    counts.add(old, np.array([(-size if is_down else size) % (1 << 32)], np.uint32))
    steps = counts.steps()
    assert sum(steps.values()) == counts.changed == 1
    assert (steps["> 64"] == 1) == (size > 64)
    # One change of one element is no news but for the bits below the highest one.
    assert counts.iid_bits() == (size.bit_length() - 1 if size > 64 else 0)


def test_exponents_bound_what_ignorance_cannot() -> None:
    """Small elements change, large ones do not: who knows the exponents needs next to nothing."""
    old = np.repeat(np.array([0x0080, 0x3F80], np.uint16), 1000)
    new = old + (old < 0x3F80).astype(np.uint16)
    counts = DtypeCounts("BF16")
    counts.add(old, new)
    assert counts.class_bits() == 0
    assert counts.iid_bits() == pytest.approx(2000)


def unpacked_gaps(streams: list[bytes], unit: int) -> list[tuple[int, int]]:
    gaps, values = np.frombuffer(streams[0], "<u2"), np.frombuffer(streams[1], f"<u{unit}")
    found, at = [], -1
    for gap, value in zip(gaps.tolist(), values.tolist(), strict=True):
        at += gap + (value != 0)
        if value:
            found.append((at, value))
    return found


@pytest.mark.parametrize(
    "positions",
    [[0], [65_534], [65_535, 65_536], [200_000, 299_999], [131_069, 131_070, 131_071]],
)
def test_gaps_and_values_say_everything(positions: list[int]) -> None:
    old = np.zeros(300_000, np.uint16)
    new = old.copy()
    new[positions] = 7
    streams: list[bytes] = []

    def compress(content: bytes) -> bytes:
        streams.append(content)
        return content

    size = gap_xor_bytes(old, new, np.array(positions, np.int64), compress)
    assert size == sum(map(len, streams))
    assert unpacked_gaps(streams, 2) == [(one, 7) for one in positions]


def contents(generator: np.random.Generator) -> tuple[Content, Content]:
    old = {
        "model.embed_tokens.weight": ("BF16", bits(generator, 16, 40, 50)),
        "model.layers.0.mlp.up_proj.weight": ("BF16", bits(generator, 16, 300, 70)),
        "model.layers.0.mlp.up_proj.scale": ("F32", bits(generator, 32, 300)),
        "model.layers.1.mlp.up_proj.weight": ("F8_E4M3", bits(generator, 8, 70, 50)),
        "model.norm.weight": ("F32", bits(generator, 32, 50)),
        "model.empty": ("BF16", bits(generator, 16, 0, 4)),
    }
    new = {name: (dtype, stepped(generator, row, 0.1)) for name, (dtype, row) in old.items()}
    new["model.norm.weight"] = old["model.norm.weight"]
    return old, new


def inspected(tmp_path: Path, old: Content, new: Content) -> Inspection:
    one = write_safetensors(tmp_path / "old", old)
    other = write_safetensors(tmp_path / "new", new, padding=3)
    return inspect(open_checkpoint(one), open_checkpoint(other), advance=lambda _: None)


def test_densities_and_bytes_are_those_of_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rose.transfer.plan.tiling.TILE_BYTES", 8192)
    old, new = contents(np.random.default_rng(1))
    inspection = inspected(tmp_path, old, new)
    assert [one.name for one in inspection.tensors] == list(new)
    for one in inspection.tensors:
        before, after = (side[one.name][1].reshape(-1) for side in (old, new))
        assert one.changed == np.count_nonzero(before != after)
        assert one.elements == before.size
        assert one.nbytes["dense"] == before.nbytes
        assert one.nbytes["coordinates"] == one.changed * (4 + before.itemsize)
        units = 8192 // before.itemsize
        frames = [
            delta_pack(after[at : at + units], before[at : at + units].copy())
            for at in range(0, before.size, units)
        ]
        assert one.nbytes[GAP] == sum(len(one.to_bytes()) for one in frames if one.changed)
        assert one.nbytes[STRAT] <= one.nbytes[GAP]
    assert inspection.nbytes()[GAP] == sum(one.nbytes[GAP] for one in inspection.tensors)
    assert {one.kind for one in inspection.tensors} == {"embed", "mlp", "norm", "other"}
    assert inspection.counts.keys() == {"BF16", "F32", "F8_E4M3"}
    assert inspection.bounds()["class"] <= inspection.bounds()["iid"] < inspection.nbytes()[GAP]


def test_zstd_is_left_out_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard")
    old, new = contents(np.random.default_rng(1))
    assert GAP_XOR_ZSTD in inspected(tmp_path, old, new).nbytes()
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert GAP_XOR_ZSTD not in inspected(tmp_path, old, new).nbytes()


def test_tensors_without_a_partner_are_named(tmp_path: Path) -> None:
    old, new = (dict(one) for one in contents(np.random.default_rng(1)))
    del new["model.empty"]
    new["extra"] = old["model.embed_tokens.weight"]
    new["model.norm.weight"] = ("BF16", new["model.norm.weight"][1].view(np.uint16).reshape(100))
    inspection = inspected(tmp_path, old, new)
    assert inspection.only_old == ("model.empty",)
    assert inspection.only_new == ("extra",)
    assert inspection.unlike == (("model.norm.weight", "F32 [50]", "BF16 [100]"),)
    assert len(inspection.tensors) == 4


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    row = ("BF16", np.zeros(4, np.uint16))
    with pytest.raises(InvalidArgument, match="have no tensor in common"):
        inspected(tmp_path, {"a": row}, {"b": row})


def test_shards_may_be_cut_otherwise(tmp_path: Path) -> None:
    old, new = contents(np.random.default_rng(1))
    names = list(new)
    shards = {"b.safetensors": names[:2], "a.safetensors": names[2:]}
    files = {file: {name: old[name] for name in mine} for file, mine in shards.items()}
    one = write_folder(tmp_path / "f", files)
    other = write_safetensors(tmp_path / "x", new)
    read: list[int] = []
    inspection = inspect(open_checkpoint(one), open_checkpoint(other), advance=read.append)
    assert {one.name for one in inspection.tensors} == set(names)
    assert sum(read) == 2 * open_checkpoint(other).nbytes


PROGRAM = """
import sys
from pathlib import Path
from rose.checkpoints.checkpoint import open_checkpoint
from rose_lab.checkpoints.inspection import inspect
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
old, new = (open_checkpoint(Path(path)) for path in sys.argv[1:])
before = peak()
inspection = inspect(old, new, advance=lambda _: None)
print(peak() - before, inspection.changed, inspection.elements)
"""


def grown_mib(tmp_path: Path, mib: int) -> float:
    """How much memory an inspection of two files of this size takes, mapped pages included."""
    elements = mib << 19
    paths = [str(sparse_safetensors(tmp_path / name, elements)) for name in ("old", "new")]
    with (tmp_path / "new").open("r+b") as file:
        file.seek(-2 * (elements // 3), 2)
        file.write(b"\1\0" * 1000)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    grown, changed, looked_at = map(int, done.stdout.split())
    assert (changed, looked_at) == (1000, elements)
    return grown / 1024


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    # Both files are 512 MiB; a tile of each, a copy and what is computed of them are far less.
    assert grown_mib(tmp_path, 256) < 300


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_large_checkpoint_is_inspected_in_little_memory(tmp_path: Path) -> None:
    assert grown_mib(tmp_path, 6 << 10) < 300
