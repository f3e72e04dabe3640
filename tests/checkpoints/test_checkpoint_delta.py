"""A delta file makes one checkpoint of another, byte for byte, and back; or it changes nothing."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.checkpoints.apply import Beside, apply_beside
from rose.checkpoints.checkpoint import open_checkpoint
from rose.checkpoints.contents import Presence, TensorDelta
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.identity import Identity, Standing, identify
from rose.checkpoints.in_place import apply_in_place
from rose.checkpoints.make import BODY_AT, CRC, HEADER, make_delta_file
from rose.errors import CorruptData, InvalidArgument, RoseError, Unavailable
from rose.transfer import Delta, delta_pack
from tests.checkpoints.made import (
    Content,
    bits,
    sparse_safetensors,
    stepped,
    write_folder,
    write_safetensors,
)

ROOT = Path(__file__).resolve().parents[2]
TILE = 64
MIXED = {"BF16": 16, "F32": 32, "F8_E4M3": 8, "I8": 8, "F64": 32, "BOOL": 8}


def quiet(_: int) -> None:
    """Nobody watches."""


def made(old: Path, new: Path, path: Path) -> tuple[TensorDelta, ...]:
    return make_delta_file(
        open_checkpoint(old), open_checkpoint(new), path, advance=quiet, tile_units=TILE
    )


def applied(base: Path, file: Path, out: Path, *, undo: bool = False) -> Beside:
    with DeltaFile(file) as delta:
        return apply_beside(open_checkpoint(base), delta, out, undo=undo, advance=quiet)


def applied_in_place(path: Path, file: Path, *, undo: bool = False) -> None:
    with DeltaFile(file) as delta:
        apply_in_place(open_checkpoint(path), delta, undo=undo, advance=quiet)


def identified(path: Path, file: Path) -> Identity:
    with DeltaFile(file) as delta:
        return identify(open_checkpoint(path), delta, advance=quiet)


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
    assert applied(old, file, out) == Beside((), ())
    assert content_of(out) == content_of(new)
    assert out.stat().st_mode & 0o777 == 0o644
    applied(new, file, old.parent / "back", undo=True)
    assert content_of(old.parent / "back") == content_of(old)


def test_folders_come_out_with_their_index_and_their_configuration(
    folders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, file = folders
    monkeypatch.setattr("rose.checkpoints.apply.COPIED_BYTES_MAX", 9)
    (old / "config.json").write_text("{}")
    (old / "pytorch_model.bin").write_bytes(bytes(10))
    (old / "runs").mkdir()
    (old / "unused.safetensors").write_bytes(b"not of the index")
    out = old.parent / "out"
    left = ("pytorch_model.bin", "runs", "unused.safetensors")
    assert applied(old, file, out) == Beside(("config.json",), left)
    assert content_of(out) == {**content_of(new), "config.json": b"{}"}
    assert out.stat().st_mode & 0o777 == 0o755
    assert not [one for one in old.parent.iterdir() if one.name.startswith(".")]


def test_real_checkpoint_of_the_package_keeps_its_digests(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file

    torch.manual_seed(0)
    old = {f"layers.{i}.weight": torch.randn(33, 17).to(torch.bfloat16) for i in range(3)}
    new = {name: (row + 1e-3).to(torch.bfloat16) for name, row in old.items()}
    for side, content in (("old", old), ("new", new)):
        save_file(content, tmp_path / side, metadata={"format": "pt"})
    made(tmp_path / "old", tmp_path / "new", tmp_path / "x.delta")
    applied(tmp_path / "old", tmp_path / "x.delta", tmp_path / "out")
    sums = [hashlib.sha256((tmp_path / one).read_bytes()).digest() for one in ("new", "out")]
    assert sums[0] == sums[1]


@given(data=st.data())
def test_any_two_checkpoints_become_each_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Tensors come, go and change shape, dtype and order; shards and headers move."""
    folder = tmp_path_factory.mktemp("any")
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    sides = []
    for side in ("old", "new"):
        content = {}
        for name in data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1)):
            dtype = data.draw(st.sampled_from(["BF16", "F32", "U8"]))
            shape = data.draw(st.sampled_from([(0,), (3,), (TILE,), (TILE + 1,), (5, 40)]))
            width = {"BF16": 16, "F32": 32, "U8": 8}[dtype]
            content[name] = (dtype, bits(generator, width, *shape))
        if data.draw(st.booleans()):
            padding = data.draw(st.integers(0, 3))
            sides.append(write_safetensors(folder / side, content, padding=padding))
        else:
            files = {f"{name}.safetensors": {name: content[name]} for name in content}
            sides.append(write_folder(folder / side, files, index=data.draw(st.booleans())))
    made(*sides, folder / "x.delta")
    applied(sides[0], folder / "x.delta", folder / "out")
    assert content_of(folder / "out") == content_of(sides[1])
    applied(sides[1], folder / "x.delta", folder / "back", undo=True)
    assert content_of(folder / "back") == content_of(sides[0])


def test_file_says_what_each_tensor_is(pair: tuple[Path, Path, Path]) -> None:
    _, _, file = pair
    with DeltaFile(file) as delta:
        tensors = {one.name: one for one in delta.tensors}
    assert tensors["tied"].tiles == tensors["a.BF16"].tiles  # the frames are there once
    assert all(tile.frame is None for tile in tensors["same"].tiles)
    assert (tensors["empty"].tiles, tensors["scalar"].shape) == ((), ())
    assert {one.presence for one in tensors.values()} == {Presence.BOTH}


def test_tied_tensors_take_their_room_once(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    old = bits(generator, 16, 4000)
    new = stepped(generator, old, 0.2)
    sizes = []
    for names in (["a"], ["a", "b"]):
        sides = [
            write_safetensors(tmp_path / side, dict.fromkeys(names, ("BF16", row)))
            for side, row in (("old", old), ("new", new))
        ]
        path = tmp_path / f"{len(names)}.delta"
        made(*sides, path)
        with DeltaFile(path) as delta:
            frames = {tile.frame for one in delta.tensors for tile in one.tiles}
        sizes.append(sum(frame.nbytes for frame in frames if frame is not None))
    assert sizes[0] == sizes[1] > 0


def test_in_place_is_the_other_version_and_back(folders: tuple[Path, Path, Path]) -> None:
    old, new, file = folders
    before = content_of(old)
    applied_in_place(old, file)
    assert content_of(old) == content_of(new)
    applied_in_place(old, file, undo=True)
    assert content_of(old) == before


def test_in_place_does_not_mind_the_name_of_one_file(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    applied_in_place(old, file)
    assert content_of(old) == content_of(new)


def test_in_place_is_refused_where_headers_differ(tmp_path: Path) -> None:
    row, other = ("BF16", np.arange(9, dtype=np.uint16)), ("BF16", np.ones(9, np.uint16))
    old = write_safetensors(tmp_path / "old", {"a": row, "b": row}, {"step": "1"})
    new = write_safetensors(tmp_path / "new", {"a": other, "b": row}, {"step": "2"})
    made(old, new, tmp_path / "x")
    before = content_of(old)
    with pytest.raises(InvalidArgument, match="cannot be changed in place; write it beside"):
        applied_in_place(old, tmp_path / "x")
    assert content_of(old) == before
    applied(old, tmp_path / "x", tmp_path / "out")
    assert content_of(tmp_path / "out") == content_of(new)


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
            failing(patch, "pwrite", writes, error)
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
    real, calls = os.pwrite, [0]

    def pwrite(descriptor: int, content: Any, at: int) -> int:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(5, "Input/output error")
        return real(descriptor, content[:40], at)  # as if a signal came

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(Unavailable, match=r"failed \(Input/output error\); it was taken back"):
        applied_in_place(old, file)
    assert content_of(old) == before
    assert calls[0] > 5


def test_in_place_says_so_when_it_cannot_take_back(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, file = pair
    real, calls = os.pwrite, [0]

    def pwrite(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] > 3:
            raise OSError(5, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(Unavailable, match="it is neither version now"):
        applied_in_place(old, file)
    monkeypatch.undo()
    identity = identified(old, file)
    assert identity.standing is Standing.NEITHER
    assert (identity.target_tiles > 0, identity.base_tiles > 0) == (True, True)
    assert identity.other_tiles == 0


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
        with pytest.raises(InvalidArgument, match="rose delta verify says what it is"):
            applied(base, file, old.parent / "out", undo=undo)
        with pytest.raises(InvalidArgument, match="rose delta verify says what it is"):
            applied_in_place(base, file, undo=undo)
    assert sorted(old.parent.iterdir()) == there
    assert content_of(wrong) == before


def test_other_tensors_are_refused_by_name(tmp_path: Path, pair: tuple[Path, Path, Path]) -> None:
    *_, file = pair
    other = write_safetensors(tmp_path / "other", {"a": ("BF16", np.zeros(3, np.uint16))})
    with pytest.raises(InvalidArgument, match=r"made from: it lacks 'a\.BF16' of BF16 \[3, 42\]"):
        applied(other, file, tmp_path / "out")
    identity = identified(other, file)
    assert identity.standing is Standing.NEITHER
    assert identity.not_base == identity.not_target == "it lacks 'a.BF16' of BF16 [3, 42]"


def test_verify_knows_base_target_and_neither(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    assert identified(old, file).standing is Standing.BASE
    assert identified(new, file).standing is Standing.TARGET
    made(old, old, old.parent / "none")
    assert identified(old, old.parent / "none").standing is Standing.BOTH
    data = bytearray(old.read_bytes())
    data[-1] ^= 1
    old.write_bytes(data)
    identity = identified(old, file)
    assert (identity.standing, identity.other_tiles) == (Standing.NEITHER, 1)
    assert identity.not_base == "'scalar' differs"


def test_nothing_is_written_over(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    before = content_of(new)
    with pytest.raises(InvalidArgument, match="exists; name a place where there is nothing"):
        applied(old, file, new)
    assert content_of(new) == before


def test_no_half_file_is_left(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, file = pair
    there = sorted(old.parent.iterdir())
    failing(monkeypatch, "fsync", 1, OSError(28, "No space left on device"))
    with pytest.raises(InvalidArgument, match=r"cannot write .*out: No space"):
        applied(old, file, old.parent / "out")
    monkeypatch.undo()
    failing(monkeypatch, "fsync", 1, OSError(28, "No space left on device"))
    with pytest.raises(InvalidArgument, match=r"cannot write .*y\.delta: No space"):
        made(old, new, old.parent / "y.delta")
    with pytest.raises(InvalidArgument, match="cannot write"):
        made(old, new, old.parent / "none" / "y.delta")
    assert sorted(old.parent.iterdir()) == there


def test_every_damaged_byte_is_found(pair: tuple[Path, Path, Path]) -> None:
    old, _, file = pair
    sound = file.read_bytes()
    for at in [*range(BODY_AT), *range(BODY_AT, len(sound), 61), len(sound) - 1]:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        with pytest.raises(RoseError):
            identified(old, file)
    for size in (0, 7, 8, BODY_AT - 1, BODY_AT, len(sound) - 1):
        file.write_bytes(sound[:size])
        with pytest.raises(CorruptData, match="cannot be used"):
            DeltaFile(file)
    file.write_bytes(sound + b"\0")
    with pytest.raises(CorruptData, match="its header says"):
        DeltaFile(file)


@pytest.mark.parametrize("undo", [False, True])
def test_a_damaged_frame_of_a_tensor_that_goes_is_refused(tmp_path: Path, *, undo: bool) -> None:
    """What only the version before has is not written, but its delta is read all the same."""
    generator = np.random.default_rng(7)
    stays, goes, comes = (("BF16", bits(generator, 16, 3 * TILE)) for _ in range(3))
    old = write_safetensors(tmp_path / "old.safetensors", {"stays": stays, "goes": goes})
    new = write_safetensors(tmp_path / "new.safetensors", {"stays": stays, "comes": comes})
    tensors = made(old, new, tmp_path / "x.delta")
    content = (tmp_path / "x.delta").read_bytes()
    frames = [tile.frame for one in tensors for tile in one.tiles if tile.frame is not None]
    assert len(frames) == 6
    for frame in frames:
        damaged = bytearray(content)
        damaged[BODY_AT + frame.offset + frame.nbytes // 2] ^= 1
        (tmp_path / "y.delta").write_bytes(damaged)
        with pytest.raises(CorruptData, match="SHA-256"):
            applied(new if undo else old, tmp_path / "y.delta", tmp_path / "out", undo=undo)
        assert not (tmp_path / "out").exists()


def test_header_of_a_file_is_as_it_was_written(pair: tuple[Path, Path, Path]) -> None:
    *_, file = pair
    sound = file.read_bytes()
    assert sound.count(b'"pt"') == 1  # the headers of both versions are alike, and there once
    file.write_bytes(sound.replace(b'"pt"', b'"tf"'))
    with pytest.raises(CorruptData, match="the SHA-256 of its bytes from 0 on differs"):
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

    monkeypatch.setattr("rose.checkpoints.make.delta_pack", pack)
    file.unlink()
    made(old, new, file)
    before = content_of(old)
    with pytest.raises(CorruptData, match="does not become what it says"):
        applied(old, file, old.parent / "out")
    with pytest.raises(CorruptData, match="does not become what it says"):
        applied_in_place(old, file)
    assert content_of(old) == before
    assert not (old.parent / "out").exists()


def test_another_version_is_named(pair: tuple[Path, Path, Path]) -> None:
    *_, file = pair
    sound = file.read_bytes()
    header = bytearray(sound[: HEADER.size])
    header[8] = 2
    file.write_bytes(header + CRC.pack(zlib.crc32(header)) + sound[BODY_AT:])
    with pytest.raises(InvalidArgument, match="has version 2; this rose reads version 1"):
        DeltaFile(file)


Change = Callable[[dict[str, Any]], object]


def forged(file: Path, change: Change) -> None:
    """Write another index into a delta file, with checksums that are right."""
    sound = file.read_bytes()
    magic, version, zero, body, _, _, other = HEADER.unpack_from(sound)
    index = json.loads(sound[BODY_AT + body :])
    change(index)
    text = json.dumps(index).encode()
    header = HEADER.pack(
        magic, version, zero, body, len(text), hashlib.sha256(text).digest(), other
    )
    frames = sound[BODY_AT : BODY_AT + body]
    file.write_bytes(header + CRC.pack(zlib.crc32(header)) + frames + text)


def tensor(index: dict[str, Any], name: str = "a.BF16") -> dict[str, Any]:
    return next(one for one in index["tensors"] if one["name"] == name)


SAME = {"old": 32 * "0", "new": 32 * "0", "frame": None}
FORGERIES: list[tuple[Change, str]] = [
    (lambda i: i.update(format=2), "its index is of another format"),
    (lambda i: i.update(format=True), "lacks a field 'format'"),
    (lambda i: i.pop("new"), "lacks a field 'new'"),
    (lambda i: i.update(tile_units=0), "its tiles have 0 elements"),
    (lambda i: i.update(tile_units=1 << 25), "its tiles have 33554432 elements"),
    (lambda i: i.update(tile_units=128), "tiles, which are not all of it"),
    (lambda i: i["tensors"].pop(), "its tensors are not those of its files"),
    (lambda i: i["tensors"].append(i["tensors"][0]), "its tensors are not those of its files"),
    (lambda i: tensor(i).update({"in": "new"}), "its tensors are not those of its files"),
    (lambda i: tensor(i).update({"in": "here"}), "has fields that no tensor has"),
    (lambda i: tensor(i).update(shape=[3, "42"]), "has fields that no tensor has"),
    (lambda i: tensor(i).update(shape=[-3, -42]), "has fields that no tensor has"),
    (lambda i: tensor(i).update(dtype="F16"), "its tensors are not those of its files"),
    (lambda i: tensor(i).update(dtype="X"), "has fields that no tensor has"),
    (lambda i: tensor(i)["tiles"].pop(), "has 1 tiles, which are not all of it"),
    (lambda i: tensor(i)["tiles"][0].update(old="00"), "it has the digest '00'"),
    (lambda i: tensor(i)["tiles"][0].update(frame=[1, 2]), "is not an offset, a size and a SHA"),
    (lambda i: tensor(i)["tiles"][0]["frame"].__setitem__(0, 1 << 40), "is outside of the body"),
    (lambda i: tensor(i)["tiles"][0]["frame"].__setitem__(1, 1 << 62), "is outside of the body"),
    (lambda i: tensor(i)["tiles"][0]["frame"].__setitem__(0, -1), "is outside of the body"),
    (lambda i: tensor(i)["tiles"][0]["frame"].__setitem__(1, 1), "begin at"),
    (lambda i: tensor(i, "a.I8")["tiles"][0].update(frame=None), "changes without a delta"),
    (lambda i: tensor(i, "a.I8")["tiles"].__setitem__(0, SAME), "do not lie one behind another"),
    (lambda i: i["new"]["files"][0].update(name="../x"), "which is no name of a file"),
    (lambda i: i["new"]["files"][0].update(name=""), "which is no name of a file"),
    (lambda i: i["new"]["files"][0].update(name="a\0"), "which is no name of a file"),
    (lambda i: i["new"].update(files=[]), "has files that no checkpoint has"),
    (lambda i: i["new"].update(files=2 * i["new"]["files"]), "has files that no checkpoint has"),
    (lambda i: i["new"]["files"][0]["header"].__setitem__(1, 1), "begin at"),
]


@pytest.mark.parametrize(("change", "says"), FORGERIES)
def test_index_that_lies_is_refused(
    pair: tuple[Path, Path, Path], change: Change, says: str
) -> None:
    *_, file = pair
    forged(file, change)
    with pytest.raises(CorruptData, match="cannot be used") as caught:
        DeltaFile(file)
    assert says in str(caught.value)


JSON = st.sampled_from(
    [None, True, -1, 0, 1, 1 << 70, 0.5, "", "x", "../x", [], [[]], [-1], [0, 0, "x"], {}, {"a": 1}]
)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree of JSON, as a container and a key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += nodes(inner)
    return found


@given(data=st.data())
def test_any_lie_of_an_index_is_a_sentence_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("lie")
    generator = np.random.default_rng(0)
    row = bits(generator, 16, 100)
    sides = [{"a": ("BF16", row), "b": ("U8", bits(generator, 8, 3))}]
    sides.append({"a": ("BF16", stepped(generator, row, 0.3)), "c": sides[0]["b"]})
    old, new = (write_safetensors(folder / f"side{i}", one) for i, one in enumerate(sides))
    made(old, new, folder / "x")
    before = content_of(old)

    def change(index: dict[str, Any]) -> None:
        container, key = data.draw(st.sampled_from(nodes(index)))
        container[key] = data.draw(JSON)

    forged(folder / "x", change)
    try:
        identified(old, folder / "x")
        applied(old, folder / "x", folder / "out")
    except RoseError:
        assert not (folder / "out").exists()
    assert content_of(old) == before


def test_frame_of_other_elements_is_refused(pair: tuple[Path, Path, Path]) -> None:
    """Two frames that change places are sound each, and still nothing is written."""
    old, _, file = pair

    def swap(index: dict[str, Any]) -> None:
        one, other = tensor(index, "a.F32")["tiles"][0], tensor(index, "a.F64")["tiles"][0]
        one["frame"], other["frame"] = other["frame"], one["frame"]

    forged(file, swap)
    before = content_of(old)
    for call in (
        lambda: applied(old, file, old.parent / "out"),
        lambda: applied_in_place(old, file),
        lambda: identified(old, file),
    ):
        with pytest.raises(CorruptData, match="is of other elements"):
            call()
    assert content_of(old) == before
    assert not (old.parent / "out").exists()


PROGRAM = """
import sys
from pathlib import Path
from rose.transfer import (Delta, delta_pack)
from rose.checkpoints.checkpoint import open_checkpoint
from rose.checkpoints.apply import apply_beside
from rose.checkpoints.identity import identify
from rose.checkpoints.in_place import apply_in_place
from rose.checkpoints.make import make_delta_file
from rose.checkpoints.delta_file import DeltaFile
def quiet(_):
    pass
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
old, new, file, out = map(Path, sys.argv[1:])
before = peak()
make_delta_file(open_checkpoint(old), open_checkpoint(new), file, advance=quiet)
with DeltaFile(file) as delta:
    apply_beside(open_checkpoint(old), delta, out, undo=False, advance=quiet)
    print(identify(open_checkpoint(out), delta, advance=quiet).standing.name)
    apply_in_place(open_checkpoint(out), delta, undo=True, advance=quiet)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old", "new", "x.delta", "out")]
    for path in paths[:2]:
        sparse_safetensors(path, 128 << 20)
    with paths[1].open("r+b") as file:
        file.seek(-1000, 2)
        file.write(bytes(range(200)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    standing, grown = done.stdout.split()
    assert standing == "TARGET"
    # Each checkpoint is 256 MiB; a tile is 32 MiB.
    assert int(grown) >> 10 < 220


def test_tensors_in_a_file_of_any_name_are_those_of_the_other_version(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, seed in ((old, 1), (new, 2)):
        row = bits(np.random.default_rng(seed), 16, 100)
        write_folder(folder, {"weights.st": {"w": ("BF16", row)}})
    (old / "config.json").write_text("{}")
    made(old, new, tmp_path / "x.delta")
    beside = applied(old, tmp_path / "x.delta", tmp_path / "out")
    assert beside == Beside(("config.json",), ())
    assert content_of(tmp_path / "out") == {**content_of(new), "config.json": b"{}"}


def test_a_delta_file_is_never_written_over_anything(pair: tuple[Path, Path, Path]) -> None:
    old, new, file = pair
    before = content_of(old)
    for taken in (old, new, file):
        with pytest.raises(InvalidArgument, match="is there already"):
            made(old, new, taken)
    assert content_of(old) == before


def test_in_place_restores_the_other_tiles_when_one_cannot_be_restored(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, file = pair
    before = content_of(old)
    real_frame, real_pwrite, writes, frames = DeltaFile.frame, os.pwrite, [0], [0]

    def pwrite(*arguments: Any) -> int:
        writes[0] += 1
        if writes[0] == 6:
            raise OSError(28, "No space left on device")
        return real_pwrite(*arguments)

    def frame(delta: DeltaFile, tensor: TensorDelta, number: int) -> Delta | None:
        if writes[0] >= 6:
            frames[0] += 1
            if frames[0] == 1:
                raise Unavailable("cannot read the delta file: Stale file handle")
        return real_frame(delta, tensor, number)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(DeltaFile, "frame", frame)
    with pytest.raises(Unavailable, match=r"Stale file handle\): it is neither version now"):
        applied_in_place(old, file)
    monkeypatch.undo()
    identity = identified(old, file)
    assert identity.target_tiles == 1
    assert identity.other_tiles == 0
    assert content_of(old) != before


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
