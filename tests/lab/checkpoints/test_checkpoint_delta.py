"""A delta file makes one checkpoint's tensors another's, and back; or it changes nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.checkpoints.checkpoint import open_checkpoint
from rose.errors import CorruptData, InvalidArgument, RoseError, Unavailable
from rose.transfer import Delta, delta_pack
from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.strat import strat_pack
from rose.transfer.manifest import Manifest
from rose.transfer.publishing.contributor import chunk_of
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.update_file import begin_update, read_update
from rose_lab.checkpoints.apply import Identity, apply_delta, identify
from rose_lab.checkpoints.delta_file import DeltaFile, make_delta_file
from tests.checkpoints.made import (
    Content,
    bits,
    sparse_safetensors,
    stepped,
    write_folder,
    write_safetensors,
)

ROOT = Path(__file__).resolve().parents[3]
TILE = 64
MIXED = {"BF16": 16, "F32": 32, "F8_E4M3": 8, "I8": 8, "F64": 32, "BOOL": 8}


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rose.transfer.plan.tiling.TILE_BYTES", 2 * TILE)
        yield


def quiet(_: int) -> None:
    """Nobody watches."""


def made(old: Path, new: Path, path: Path) -> Manifest:
    return make_delta_file(open_checkpoint(old), open_checkpoint(new), path, advance=quiet)


def applied(
    base: Path, file: Path, out: Path, *, undo: bool = False
) -> tuple[list[str], list[str]]:
    return apply_delta(open_checkpoint(base), DeltaFile(file), out=out, undo=undo, advance=quiet)


def applied_in_place(path: Path, file: Path, *, undo: bool = False) -> None:
    apply_delta(open_checkpoint(path), DeltaFile(file), out=None, undo=undo, advance=quiet)


def identified(path: Path, file: Path) -> Identity:
    return identify(open_checkpoint(path), DeltaFile(file), advance=quiet)


def standing(path: Path, file: Path) -> tuple[bool, bool]:
    """Whether it is the base, and whether it is the target."""
    identity = identified(path, file)
    return identity.not_base is None, identity.not_target is None


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (one.stored.dtype, one.stored.shape, one.units(0, one.count).tobytes())
        for name, one in open_checkpoint(path).tensors.items()
    }


def content_of(path: Path) -> dict[str, bytes]:
    """Every file of a folder, or the one file."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {one.name: one.read_bytes() for one in path.iterdir()}


def weights(generator: np.random.Generator) -> tuple[Content, Content]:
    old: dict[str, Any] = {
        f"a.{dtype}": (dtype, bits(generator, width, 3, 2 * TILE // 3 + 7 * i))
        for i, (dtype, width) in enumerate(MIXED.items())
    }
    # An element of 64 bits is two of the units that the codec sees.
    row = bits(generator, 32, 150)
    old["a.F64"] = ("F64", row.view(np.uint64))
    old["tied"] = old["a.BF16"]
    old["same"] = ("BF16", bits(generator, 16, 100))
    old["empty"] = ("F16", np.zeros((0, 5), np.uint16))
    old["scalar"] = ("F32", np.array(3, np.uint32))
    new = {name: (dtype, stepped(generator, row, 0.2)) for name, (dtype, row) in old.items()}
    new["tied"] = new["a.BF16"]
    new["same"] = old["same"]
    return old, new


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """An old file, a new one, and the delta file of both."""
    old, new = weights(np.random.default_rng(5))
    before = write_safetensors(tmp_path / "old.safetensors", old, {"format": "pt"})
    after = write_safetensors(tmp_path / "new.safetensors", new, {"format": "pt"})
    made(before, after, tmp_path / "x.delta")
    return before, after, tmp_path / "x.delta"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    old, new = weights(np.random.default_rng(6))
    names = list(old)

    def cut(content: Content) -> dict[str, Content]:
        halves = {"m-1.safetensors": names[:4], "m-2.safetensors": names[4:]}
        return {file: {name: content[name] for name in mine} for file, mine in halves.items()}

    before, after = (
        write_folder(tmp_path / side, cut(one)) for side, one in (("old", old), ("new", new))
    )
    made(before, after, tmp_path / "x.delta")
    return before, after, tmp_path / "x.delta"


def test_apply_and_undo_make_the_files_byte_for_byte(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    out = old.parent / "out"
    assert applied(old, file, out) == ([], [])
    assert content_of(out) == content_of(new)
    assert out.stat().st_mode & 0o777 == 0o644
    applied(new, file, old.parent / "back", undo=True)
    assert content_of(old.parent / "back") == content_of(old)


def test_folders_come_out_with_their_index_and_their_configuration(
    folders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, file = folders
    monkeypatch.setattr("rose_lab.checkpoints.apply.OTHER_BYTES_MAX", 1000)
    (old / "config.json").write_text("{}")
    (old / "pytorch_model.bin").write_bytes(bytes(1001))
    (old / "runs").mkdir()
    (old / "unused.safetensors").write_bytes(b"not of the index")
    out = old.parent / "out"
    left = ["pytorch_model.bin", "runs", "unused.safetensors"]
    copied = ["config.json", "model.safetensors.index.json"]
    assert applied(old, file, out) == (copied, left)
    assert content_of(out) == {**content_of(new), "config.json": b"{}"}
    assert out.stat().st_mode & 0o777 == 0o755
    assert not [one for one in old.parent.iterdir() if one.name.startswith(".")]


@given(data=st.data())
def test_tensors_become_each_other_in_whatever_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    names = data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
    kinds = {"BF16": 16, "F32": 32, "U8": 8}
    shapes = [(0,), (3,), (), (TILE,), (TILE + 1,), (5, 40)]
    drawn = {
        name: (data.draw(st.sampled_from(sorted(kinds))), data.draw(st.sampled_from(shapes)))
        for name in names
    }
    sides = []
    for side in ("old", "new"):
        content = {
            name: (dtype, bits(generator, kinds[dtype], *shape))
            for name, (dtype, shape) in data.draw(st.permutations(sorted(drawn.items())))
        }
        if data.draw(st.booleans()):
            padding = data.draw(st.integers(0, 3))
            sides.append(write_safetensors(folder / side, content, padding=padding))
        else:
            files = {f"{name}.safetensors": {name: one} for name, one in content.items()}
            sides.append(write_folder(folder / side, files, index=data.draw(st.booleans())))
    made(*sides, folder / "x.delta")
    applied(sides[0], folder / "x.delta", folder / "out")
    assert tensors_of(folder / "out") == tensors_of(sides[1])
    applied(sides[1], folder / "x.delta", folder / "back", undo=True)
    assert tensors_of(folder / "back") == tensors_of(sides[0])
    applied_in_place(folder / "out", folder / "x.delta", undo=True)
    assert content_of(folder / "out") == content_of(sides[0])


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"a": ("BF16", (9,)), "b": ("F32", (9,))},
        {"a": ("BF16", (9,)), "b": ("BF16", (3, 3))},
        {"a": ("BF16", (9,)), "b": ("BF16", (9,)), "c": ("U8", (1,))},
    ],
)
def test_other_tensors_make_no_delta(
    tmp_path: Path, other: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    widths = {"BF16": 16, "F32": 32, "U8": 8}
    generator = np.random.default_rng(0)
    row = ("BF16", bits(generator, 16, 9))
    old = write_safetensors(tmp_path / "old", {"a": row, "b": row})
    content = {
        name: (one, bits(generator, widths[one], *shape)) for name, (one, shape) in other.items()
    }
    new = write_safetensors(tmp_path / "new", content)
    with pytest.raises(InvalidArgument, match="needs tensors of the same names"):
        made(old, new, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_update_of_a_relay_is_a_delta_file(folders: tuple[Path, Path, Path]) -> None:
    """As its folder has it: without the digests of all tiles, in the order in which chunks came."""
    old, new, file = folders
    update = read_update(file.read_bytes())
    frames = {
        tile: file.read_bytes()[first : first + nbytes]
        for tile, (first, nbytes, _) in update.places.items()
    }
    manifest = replace(update.manifest, tile_digests=(), mac=b"of somebody")
    kept = old.parent / "updates"
    store = DiskStore(HostDisk(kept), bytes_max=1 << 20)
    for tile in reversed(frames):
        store.put(manifest, {tile: frames[tile]})
    store.close()
    (path,) = kept.iterdir()
    assert standing(old, path) == (True, False)
    applied_in_place(old, path)
    assert content_of(old) == content_of(new)
    data = bytearray((old / "m-2.safetensors").read_bytes())
    data[-1] ^= 1
    (old / "m-2.safetensors").write_bytes(data)
    assert standing(old, path) == (False, False)


def test_files_keep_their_headers(tmp_path: Path) -> None:
    row, other = ("BF16", np.arange(9, dtype=np.uint16)), ("BF16", np.ones(9, np.uint16))
    old = write_safetensors(tmp_path / "old", {"a": row, "b": row})
    new = write_safetensors(tmp_path / "new", {"a": other, "b": row}, {"step": "2"})
    made(old, new, tmp_path / "x")
    applied(old, tmp_path / "x", tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(new)
    assert open_checkpoint(tmp_path / "out").files[0].header == open_checkpoint(old).files[0].header


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_in_place_leaves_links_alone(
    tmp_path: Path, folders: tuple[Path, Path, Path], link: Callable[[Path, Path], None]
) -> None:
    """A cache of models links its folders to bits that others use as well."""
    old, _, file = folders
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for one in old.iterdir():
        link(one, snapshot / one.name)
    before = content_of(old)
    with pytest.raises(InvalidArgument, match="is a link"):
        applied_in_place(snapshot, file)
    assert content_of(old) == before


def failing(monkeypatch: pytest.MonkeyPatch, name: str, n: int, error: BaseException) -> None:
    """Let the n-th call of a function of os fail."""
    calls = [0]
    real: Callable[..., Any] = getattr(os, name)

    def call(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == n:
            raise error
        return real(*arguments)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_in_place_takes_back_what_it_wrote_whichever_write_fails(
    folders: tuple[Path, Path, Path], error: BaseException
) -> None:
    old, new, file = folders
    before, writes, is_done = content_of(old), 0, False
    while not is_done:
        writes += 1
        with pytest.MonkeyPatch.context() as patch:
            failing(patch, "pwritev", writes, error)
            try:
                applied_in_place(old, file)
                is_done = True
            except (Unavailable, KeyboardInterrupt):
                assert content_of(old) == before
    assert content_of(old) == content_of(new)
    assert writes > 10


def test_in_place_restores_a_tile_that_was_half_written(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, file = pair
    before = content_of(old)
    real, calls = os.pwritev, [0]

    def pwritev(descriptor: int, parts: list[Any], at: int) -> int:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(5, "Input/output error")
        return real(descriptor, [parts[0][:40]], at)  # as if a signal came

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(Unavailable, match="cannot be read or written: Input/output error"):
        applied_in_place(old, file)
    assert content_of(old) == before
    assert calls[0] > 5


def test_in_place_says_so_when_it_cannot_take_back(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, file = pair
    real, calls = os.pwritev, [0]

    def pwritev(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] > 3:
            raise OSError(5, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(Unavailable, match="is neither version now"):
        applied_in_place(old, file)
    monkeypatch.undo()
    identity = identified(old, file)
    assert standing(old, file) == (False, False)
    assert (identity.target_tiles, identity.other_tiles) == (3, 0)
    assert identity.base_tiles > 0


def test_wrong_base_is_refused_and_nothing_is_left(folders: tuple[Path, Path, Path]) -> None:
    old, new, file = folders
    wrong = old.parent / "wrong"
    shutil.copytree(old, wrong)
    data = bytearray((wrong / "m-2.safetensors").read_bytes())
    data[-1] ^= 1
    (wrong / "m-2.safetensors").write_bytes(data)
    before = content_of(wrong)
    there = sorted(old.parent.iterdir())
    for base, undo in ((wrong, False), (new, False), (old, True)):
        with pytest.raises(InvalidArgument, match="run `rose delta verify` to see"):
            applied(base, file, old.parent / "out", undo=undo)
        with pytest.raises(InvalidArgument, match="run `rose delta verify` to see"):
            applied_in_place(base, file, undo=undo)
    assert sorted(old.parent.iterdir()) == there
    assert content_of(wrong) == before


def test_other_tensors_are_refused(tmp_path: Path, pair: tuple[Path, Path, Path]) -> None:
    *_, file = pair
    other = write_safetensors(tmp_path / "other", {"a": ("BF16", np.zeros(3, np.uint16))})
    with pytest.raises(InvalidArgument, match="was made for other tensors than"):
        applied(other, file, tmp_path / "out")
    identity = identified(other, file)
    assert identity.not_base == identity.not_target == "it has other tensors"


def test_verify_knows_base_target_and_neither(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    assert standing(old, file) == (True, False)
    assert standing(new, file) == (False, True)
    made(old, old, old.parent / "none")
    assert standing(old, old.parent / "none") == (True, True)
    data = bytearray(old.read_bytes())
    data[-1] ^= 1
    old.write_bytes(data)
    identity = identified(old, file)
    assert identity.not_base == "'scalar' differs"
    assert identity.other_tiles == 1


def test_nothing_is_written_over(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    before = content_of(new)
    with pytest.raises(InvalidArgument, match="exists; name a path that does not exist"):
        applied(old, file, new)
    assert content_of(new) == before


def test_no_half_file_is_left(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, file = pair
    there = sorted(old.parent.iterdir())
    for fails_at in (1, 2):  # what is changed in the copy, and the copy itself
        with pytest.MonkeyPatch.context() as patch:
            failing(patch, "fsync", fails_at, OSError(28, "No space left on device"))
            with pytest.raises(RoseError, match=r"out.*: No space"):
                applied(old, file, old.parent / "out")
    failing(monkeypatch, "fsync", 1, OSError(28, "No space left on device"))
    with pytest.raises(InvalidArgument, match=r"cannot write .*y\.delta: No space"):
        made(old, new, old.parent / "y.delta")
    with pytest.raises(InvalidArgument, match="cannot write"):
        made(old, new, old.parent / "none" / "y.delta")
    assert sorted(old.parent.iterdir()) == there


def test_every_damaged_byte_is_found(pair: tuple[Path, Path, Path]) -> None:
    old, _, file = pair
    sound = file.read_bytes()
    for at in [*range(40), *range(40, len(sound), 61), len(sound) - 1]:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        with pytest.raises(RoseError):
            identified(old, file)
    for size in (1, 7, 15, 16, 40, len(sound) - 1):
        file.write_bytes(sound[:size])
        with pytest.raises(CorruptData, match="cannot be used"):
            DeltaFile(file)
    file.write_bytes(b"")
    with pytest.raises(InvalidArgument, match="cannot read"):
        DeltaFile(file)
    file.write_bytes(sound + b"\0")
    with pytest.raises(CorruptData, match="its chunks are damaged"):
        DeltaFile(file)


def test_delta_that_does_something_else_is_refused(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksums and its digests are right; what it does is not what they say."""
    old, new, file = pair

    def pack(new: Any, shadow: Any, **options: Any) -> Delta:
        right = delta_pack(new, shadow.copy(), **options)
        wrong = delta_pack(new ^ new.dtype.type(1), shadow, **options)
        return replace(wrong, digest=right.digest) if right.changed else right

    monkeypatch.setattr("rose_lab.checkpoints.delta_file.delta_pack", pack)
    file.unlink()
    made(old, new, file)
    before = content_of(old)
    with pytest.raises(CorruptData, match="does not get the listed digest"):
        applied(old, file, old.parent / "out")
    with pytest.raises(CorruptData, match="does not get the listed digest"):
        applied_in_place(old, file)
    assert content_of(old) == before
    assert not (old.parent / "out").exists()


Parts = tuple[Manifest, dict[int, bytes]]


def parts_of(file: Path) -> Parts:
    content = file.read_bytes()
    update = read_update(content)
    places = update.places.items()
    return update.manifest, {tile: content[at : at + size] for tile, (at, size, _) in places}


def forged(file: Path, manifest: Manifest, frames: dict[int, bytes]) -> None:
    """Write another update, with checksums that are right."""
    update, header = begin_update(manifest)
    file.write_bytes(b"".join([header, *update.add(frames)]))


def without_the_last(parts: Parts) -> Parts:
    manifest, frames = parts
    tile = manifest.chunks[-1].tile
    kept = {one: frame for one, frame in frames.items() if one != tile}
    return replace(manifest, chunks=manifest.chunks[:-1]), kept


def whole_weights(parts: Parts) -> Parts:
    manifest, frames = parts
    chunks = tuple(replace(one, sha256=b"") for one in manifest.chunks)
    return replace(manifest, base=None, chunks=chunks), frames


def with_two_swapped(parts: Parts) -> Parts:
    """Two frames of a size change places; each is sound, and so are its checksums."""
    manifest, frames = parts
    chunks = list(manifest.chunks)
    one, other = next(
        (i, j)
        for i in range(len(chunks))
        for j in range(i)
        if (chunks[i].nbytes, chunks[i].digest) != (chunks[j].nbytes, chunks[j].digest)
    )
    here, there = chunks[one], chunks[other]
    chunks[one], chunks[other] = replace(there, tile=here.tile), replace(here, tile=there.tile)
    swapped = {**frames, here.tile: frames[there.tile], there.tile: frames[here.tile]}
    return replace(manifest, chunks=tuple(chunks)), swapped


REFUSED: list[tuple[Callable[[Parts], Parts], type[RoseError], str]] = [
    (lambda p: (p[0], dict(list(p[1].items())[1:])), CorruptData, "its chunks are damaged"),
    (whole_weights, InvalidArgument, "holds whole weights"),
    (lambda p: (replace(p[0], layout=64 * "0"), p[1]), InvalidArgument, "for other tensors"),
    (
        lambda p: (replace(p[0], tile_count=9999, tile_digests=()), p[1]),
        InvalidArgument,
        "was made for other tensors",
    ),
    (without_the_last, CorruptData, "do not add up to its digest"),
    (lambda p: (replace(p[0], digest=(1, 2)), p[1]), CorruptData, "do not add up to its digest"),
    (lambda p: (replace(p[0], base_digest=(1, 2)), p[1]), InvalidArgument, "is not the"),
    (with_two_swapped, CorruptData, "cannot be used: "),
]


@pytest.mark.parametrize(("change", "kind", "says"), REFUSED)
def test_an_update_that_lies_is_refused(
    pair: tuple[Path, Path, Path],
    change: Callable[[Parts], Parts],
    kind: type[RoseError],
    says: str,
) -> None:
    old, _, file = pair
    forged(file, *change(parts_of(file)))
    before, there = content_of(old), sorted(old.parent.iterdir())
    for out in (old.parent / "out", None):
        with pytest.raises(kind, match=says):
            apply_delta(open_checkpoint(old), DeltaFile(file), out=out, undo=False, advance=quiet)
    assert content_of(old) == before
    assert sorted(old.parent.iterdir()) == there


def test_a_frame_that_is_not_the_chunks_is_refused(pair: tuple[Path, Path, Path]) -> None:
    """Its record has the right CRC; the manifest has another SHA-256."""
    old, _, file = pair
    manifest, frames = parts_of(file)
    tile, frame = next(iter(frames.items()))
    forged(file, manifest, {**frames, tile: frame[:-1] + bytes([frame[-1] ^ 1])})
    for call in (
        lambda: applied(old, file, old.parent / "out"),
        lambda: applied_in_place(old, file),
        lambda: identified(old, file),
    ):
        with pytest.raises(CorruptData, match="is not the published one"):
            call()


def test_update_for_a_link_is_refused(tmp_path: Path) -> None:
    """STRAT says positions by old exponents; a receiver has them, and an undo has not."""
    generator = np.random.default_rng(0)
    row = generator.normal(size=TILE).astype(np.float32).view(np.uint32) >> 16
    old_bits = row.astype(np.uint16)
    new_bits = stepped(generator, old_bits, 0.5)
    old, new = (
        write_safetensors(tmp_path / name, {"a": ("BF16", one)})
        for name, one in (("old", old_bits), ("new", new_bits))
    )
    manifest = made(old, new, tmp_path / "x")
    rule = class_rule(new_bits, old_bits)
    assert rule is not None
    link = strat_pack(delta_pack(new_bits, old_bits.copy()), old_bits, rule)
    assert link.rule is not None
    frame = link.to_bytes()
    chunks = (chunk_of(0, link, frame),)
    forged(tmp_path / "x", replace(manifest, chunks=chunks), {0: frame})
    with pytest.raises(InvalidArgument, match="STRAT"):
        applied(old, tmp_path / "x", tmp_path / "out")


def test_file_of_an_earlier_rose_is_named(pair: tuple[Path, Path, Path]) -> None:
    *_, file = pair
    file.write_bytes(b"ROSEUPD1" + file.read_bytes()[8:])
    with pytest.raises(InvalidArgument, match="earlier rose"):
        DeltaFile(file)


PROGRAM = """
import sys
from pathlib import Path
from rose_lab.checkpoints.apply import apply_delta, identify
from rose.checkpoints.checkpoint import open_checkpoint
from rose_lab.checkpoints.delta_file import DeltaFile, make_delta_file
def quiet(_):
    pass
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
old, new, file, out = map(Path, sys.argv[1:])
before = peak()
make_delta_file(open_checkpoint(old), open_checkpoint(new), file, advance=quiet)
delta = DeltaFile(file)
apply_delta(open_checkpoint(old), delta, out=out, undo=False, advance=quiet)
print(identify(open_checkpoint(out), delta, advance=quiet).not_target)
apply_delta(open_checkpoint(out), delta, out=None, undo=True, advance=quiet)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old", "new", "x.delta", "out")]
    for path in paths[:2]:
        sparse_safetensors(path, 64 << 20)
    with paths[1].open("r+b") as file:
        file.seek(-1000, 2)
        file.write(bytes(range(200)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    not_target, grown = done.stdout.split()
    assert not_target == "None"
    # Each checkpoint is 128 MiB.
    assert int(grown) >> 10 < 100


def test_a_delta_file_is_never_written_over_anything(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    before = content_of(old)
    for taken in (old, new, file):
        with pytest.raises(InvalidArgument, match="exists; name a path"):
            made(old, new, taken)
    assert content_of(old) == before


def test_permissions_are_those_that_the_user_asks_for(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    old, new, file = pair
    mask = os.umask(0o077)
    try:
        made(old, new, tmp_path / "private.delta")
        applied(old, file, tmp_path / "private.safetensors")
    finally:
        os.umask(mask)
    for name in ("private.delta", "private.safetensors"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
