"""The embedded codec, its kernels on this CPU: the laws of every twin, its launches and copies."""

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose.errors import CorruptData, InternalError, InvalidArgument
from rose.transfer import Delta, delta_pack
from rose.transfer.codec.backend import HostCodec
from tests.codec_cases import CASES, Case, answer
from tests.codec_laws import VECTORS, CodecLaws
from tests.codec_twins import CodecTwin
from tests.kernels import on_cpu
from tests.kernels.on_cpu import Box, KernelsOnCpu, Order, divisor
from tests.reference import delta as reference
from tests.reference.delta import Bits
from tests.vectors.delta_v2 import changed

torch = pytest.importorskip("torch")
TorchDispatchMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
embedded = pytest.importorskip("rose.kernels.embedded")
gpu = pytest.importorskip("rose.kernels.gpu")

BLOCK = 16_384
HOST = HostCodec(isa=None)
CASE = Case(BLOCK, 40_961, 0.05, 0.2)


class LauncherOnCpu:
    """Takes the calls of `DeviceCodec`, and makes their structs as its binding does."""

    def __init__(self, library: Path) -> None:
        self._kernels = KernelsOnCpu(library, order=Order.SHUFFLED)
        self.launches: list[str] = []

    def _run(self, name: str, kind: Any, values: dict[str, Any], *boxes: str) -> None:
        count, stream = values["count"], values.pop("stream")
        assert stream == 7
        if count == 0:
            return
        for one in boxes:
            values[one] = box_at(values[one], values.pop(f"{one}_box"), count)
        blocks = -(-count // values["block_elements"]) if "block_elements" in values else 2
        threads = on_cpu.threads_of(name, values.get("block_elements", BLOCK * 4))
        if name == "digest":
            threads = 256
        self.launches.append(name)
        self._kernels.launch(name, kind(**values), blocks=blocks, threads=threads)

    def delta_pack(self, *, stream: int, **values: Any) -> None:
        """Pack flat arrays together, as the launcher does, and each of the others alone."""
        assert stream == 7
        columns = {name: one for name, one in values.items() if isinstance(one, list)}
        shared = {name: one for name, one in values.items() if name not in columns}
        flat, block, blocks = [], values["block_elements"], 0
        for row in zip(*columns.values(), strict=True):
            one = {**shared, **dict(zip(columns, row, strict=True))}
            if one["count"] == 0:
                continue
            one["first_block"] = blocks
            blocks += -(-one["count"] // block)
            boxes = [one.pop("bits_box"), one.pop("shadow_box")]
            is_flat = one["width"] == 16 and boxes == [None, None] and not one.get("ages")
            for name, lie in zip(("bits", "shadow"), boxes, strict=True):
                is_flat = is_flat and one[name] % 16 == 0
                one[name] = box_at(one[name], lie, one["count"])
            params = on_cpu.PackParams(**one)
            if is_flat:
                flat.append(params)
            else:
                self._launch_flat(flat, block)
                name = "delta_pack" if block == on_cpu.BLOCK_MAX else "delta_pack_16k"
                self._launch(name, params, -(-params.count // block), block)
        self._launch_flat(flat, block)

    def _launch_flat(self, flat: list[ctypes.Structure], block: int) -> None:
        if flat:
            ctas = sum(-(-one.count // block) for one in flat)
            name = f"delta_pack_flat_{block // 1024}k"
            self._launch(name, on_cpu.flat_params(flat), ctas, block)
            flat.clear()

    def _launch(self, name: str, params: ctypes.Structure, ctas: int, block: int) -> None:
        self.launches.append(name)
        self._kernels.launch(name, params, blocks=ctas, threads=on_cpu.threads_of(name, block))

    def delta_apply(self, *, stream: int, bad_block: int, undo: bool, **columns: Any) -> None:
        assert stream == 7
        arrays, ctas = [], 0
        for row in zip(*columns.values(), strict=True):
            one = dict(zip(columns, row, strict=True))
            if one["count"] == 0:
                continue
            block = one.pop("block_elements")
            one["weights"] = box_at(one["weights"], one.pop("weights_box"), one["count"])
            arrays.append(on_cpu.ApplyArray(**one))
            ctas += -(-one["count"] // block)
        if not arrays:
            return
        params = on_cpu.apply_params(
            arrays, block_elements=block, bad_block=bad_block, is_undo=undo
        )
        name = "delta_apply_digest" if arrays[0].digest else "delta_apply"
        self._launch(name, params, ctas, block)

    def topk_unpack(self, **values: Any) -> None:
        self._run("topk_unpack", on_cpu.UnpackParams, values, "base")

    def topk_histogram(self, **values: Any) -> None:
        self._run("topk_histogram", on_cpu.HistogramParams, values, "bits", "shadow")

    def topk_threshold(self, *, stream: int, **values: Any) -> None:
        assert stream == 7
        params = on_cpu.ThresholdParams(**values)
        self.launches.append("topk_threshold")
        self._kernels.launch("topk_threshold", params, blocks=1, threads=1024)

    def digest(self, **values: Any) -> None:
        self._run("digest", on_cpu.DigestParams, values, "bits")


def box_at(address: int, lie: tuple[int, ...] | None, count: int) -> Box:
    sizes, strides = ((1, 1, count), (0, 0, 0, 1)) if lie is None else (lie[:3], lie[3:])
    numbers = [one for size in sizes for one in divisor(size)]
    return Box(address, (ctypes.c_uint64 * 9)(*numbers), (ctypes.c_uint64 * 4)(*strides))


@pytest.fixture(scope="module")
def codec(library: Path) -> Iterator[Any]:
    """Return the embedded codec over `LauncherOnCpu`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_stream_of", lambda _: 7)
        made = object.__new__(embedded.EmbeddedCodec)
        made._codec = LauncherOnCpu(library)
        yield made


def tensor(array: Any) -> Any:
    """Return the same memory as signed numbers: torch has few unsigned types."""
    return torch.from_numpy(array.view(f"i{array.itemsize}"))


class OnCpu:
    """A copy of an array as a tensor; a box is used where it lies."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits.copy() if bits.flags.c_contiguous else bits
        self.tensor = tensor(self._bits)

    def bits(self) -> Bits:
        return np.ascontiguousarray(self._bits).reshape(-1)


@pytest.fixture(scope="module")
def twin(codec: Any) -> CodecTwin:
    return CodecTwin(codec, OnCpu)


class TestEmbedded(CodecLaws):
    """The embedded codec."""

    cases = tuple(case for case in CASES if case.count > 1_000)
    packs = tuple(VECTORS["packs"][::3])


def packed(case: Case) -> Delta:
    """Return the delta of a case, packed by the core."""
    return delta_pack(answer(case).new, answer(case).old.copy(), block_elements=BLOCK)


@pytest.mark.parametrize("room", [1, 700, 30_000])
def test_blocks_without_room_are_packed_again(
    codec: Any, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(embedded, "_ARENA_WORDS_MIN", room)
    monkeypatch.setattr(embedded, "_ELEMENTS_OF_WORD", 1 << 30)
    wants = [answer(Case(BLOCK, 40_961, share, 0.2)) for share in (0.05, 0.9, 0.02)]
    shadows = [one.old.copy() for one in wants]
    news, olds = [one.new for one in wants], [one.old.copy() for one in wants]
    options = {"block_elements": BLOCK, "base_digests": [None] * len(wants)}
    found = codec.delta_pack(list(map(tensor, news)), list(map(tensor, shadows)), **options)
    assert_same(found, HOST.delta_pack(news, olds, **options))
    for want, shadow in zip(wants, shadows, strict=True):
        assert np.array_equal(shadow, want.new)


def test_arena_has_a_word_for_eight_elements() -> None:
    like = torch.zeros(1 << 22, dtype=torch.int16)
    base = torch.zeros(2, dtype=torch.int64)
    large, _ = embedded._room_for([like], base, BLOCK, None)
    assert large.arena.numel() == like.numel() // 8
    small, _ = embedded._room_for([like[:BLOCK]], base, BLOCK, None)
    assert small.arena.numel() == BLOCK // 2


@pytest.mark.parametrize("width", [8, 16, 32])
def test_device_refuses_with_the_words_of_the_core(codec: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    case = replace(CASE, width=width)
    want, sound = answer(case), packed(case)
    refusals = 0
    for undo in (False, True) * 20:
        entries, payload = sound.entries.copy(), sound.payload.copy()
        if rng.random() < 0.2:
            entries[rng.integers(len(entries))] ^= np.uint64(1 << int(rng.integers(64)))
        else:
            payload[rng.integers(len(payload))] ^= np.uint32(1 << int(rng.integers(32)))
        delta = replace(sound, entries=entries, payload=payload)
        held = want.new.copy() if undo else want.old.copy()
        expected = held.copy()
        try:
            changes = HOST.topk_unpack(expected, delta)
            HOST.delta_apply([expected], [delta], [""], undo=undo)
        except CorruptData as refusal:
            refusals += 1
            says = re.escape(str(refusal))
            with pytest.raises(CorruptData, match=says):
                codec.topk_unpack(tensor(held), delta)
            with pytest.raises(CorruptData, match=says):
                codec.delta_apply([tensor(held)], [delta], [""], undo=undo)
        else:
            found = codec.topk_unpack(tensor(held), delta)
            assert [one.tolist() for one in found] == [one.tolist() for one in changes]
            codec.delta_apply([tensor(held)], [delta], [""], undo=undo)
        assert np.array_equal(held, expected)
    assert 0 < refusals < 40


def test_refusal_of_a_sound_delta_is_a_bug_and_changes_nothing(
    codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, delta = answer(CASE), packed(CASE)
    held, apply = want.old.copy(), codec.apply_blocks

    def refuse(*args: Any, **options: Any) -> Any:
        bad, sums = apply(*args, **options)
        return bad.fill_(1), sums

    monkeypatch.setattr(codec, "apply_blocks", refuse)
    with pytest.raises(InternalError, match="the device refuses block 1 of a sound delta"):
        codec.delta_apply([tensor(held)], [delta], [""], undo=False)
    assert np.array_equal(held, want.old)
    # The host has checked this delta, so nothing waits for the answer of the device.
    codec.delta_apply([tensor(held)], [replace(delta, is_checked=True)], [""], undo=False)
    assert np.array_equal(held, want.new)


@pytest.mark.parametrize("density", [0.05, 0.9])
def test_apply_of_a_damaged_or_misplaced_delta_is_undone(codec: Any, density: float) -> None:
    case = replace(CASE, density=density)
    want, delta = answer(case), packed(case)
    places = (want.new != want.old).nonzero()[0]
    touched = want.old.copy()
    touched[places[len(places) // 2]] ^= 0x4000
    steps = np.where(want.new == want.old, want.old, want.old + np.uint16(1))
    other = delta_pack(steps, want.old.copy(), block_elements=BLOCK)
    # A delta with another payload that is well formed, and weights of another version.
    damaged = replace(delta, entries=other.entries, payload=other.payload)
    for held, wrong in ((want.old.copy(), damaged), (touched, delta), (want.new.copy(), delta)):
        before = held.copy()
        codec.delta_apply([tensor(held.copy())], [wrong], [""], undo=False)
        for is_checked in (False, True):
            marked = replace(wrong, is_checked=is_checked)
            with pytest.raises(CorruptData, match="the weights are not the base of the delta"):
                codec.delta_apply([tensor(held)], [marked], [""], undo=False, verify=True)
            assert np.array_equal(held, before)
    codec._codec.launches.clear()
    codec.delta_apply([tensor(held := want.old.copy())], [delta], [""], undo=False, verify=True)
    assert np.array_equal(held, want.new)
    assert codec._codec.launches == ["delta_apply_digest"], "the weights are read once"


def test_upper_halves_of_floats_are_changed_in_place(codec: Any) -> None:
    want, delta = answer(CASE), packed(CASE)
    floats = torch.from_numpy((want.old.astype(np.uint32) << 16).view(np.float32))
    halves = floats.view(torch.int16)[1::2]
    codec.delta_apply([halves], [delta], [""], undo=False, verify=True)
    assert np.array_equal(floats.numpy().view(np.uint32), want.new.astype(np.uint32) << 16)
    assert codec.digest(halves) == delta.digest


def models() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return new and old arrays of a model: of all widths, one without elements, one unchanged."""
    rng = np.random.default_rng(7)
    news, olds = {}, {}
    for name, count, width in (("a", 50_000, 16), ("b", 0, 16), ("c", 33, 8), ("d", 20_001, 32)):
        news[name], olds[name] = changed(rng, count, density=0.05, steps=0.7, width=width)
    news["same"] = olds["same"] = rng.integers(0, 1 << 16, 129, dtype=np.uint16)
    return news, olds


def boxed(model: dict[str, Any]) -> list[Any]:
    """Copy the arrays into tensors, the first one with strides."""
    tensors = [tensor(one.copy()) for one in model.values()]
    wide = torch.zeros(len(tensors[0]) // 10, 16, dtype=tensors[0].dtype)[:, 3:13]
    wide.copy_(tensors[0].view(wide.shape))
    return [wide, *tensors[1:]]


def bits_of(tensors: list[Any]) -> list[list[int]]:
    return [one.contiguous().view(-1).tolist() for one in tensors]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Check that two packs gave the same deltas."""
    for one, other in zip(found, expected, strict=True):
        assert one.entries.tolist() == other.entries.tolist()
        assert one.payload.tolist() == other.payload.tolist()
        assert (one.base_digest, one.digest) == (other.base_digest, other.digest)


def deltas_of(model: dict[str, Any], packs: list[Any]) -> list[Delta]:
    return [
        Delta(one.size, BLOCK, 8 * one.itemsize, *pack)
        for one, pack in zip(model.values(), packs, strict=True)
    ]


class Copies:
    """Counts the copies to the device and back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.fetched = 0
        to_device, to_host = gpu.on_gpu_of, embedded.on_host

        def on_gpu_of(*args: Any) -> Any:
            self.sent += 1
            return to_device(*args)

        def on_host(*args: Any) -> Any:
            self.fetched += 1
            return to_host(*args)

        monkeypatch.setattr(gpu, "on_gpu_of", on_gpu_of)
        monkeypatch.setattr(embedded, "on_host", on_host)


def test_model_is_packed_and_applied_as_its_tensors_are_with_one_copy_each(
    codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    news, olds = models()
    expected = HOST.delta_pack(
        list(news.values()),
        [one.copy() for one in olds.values()],
        block_elements=BLOCK,
        base_digests=[None] * len(news),
    )
    known = [None, None, expected[2].base_digest, None, None]
    copies = Copies(monkeypatch)
    fresh, shadow = boxed(news), boxed(olds)
    found = codec.delta_pack(fresh, shadow, block_elements=BLOCK, base_digests=known)
    assert_same(found, expected)
    deltas = deltas_of(news, found)
    assert bits_of(shadow) == bits_of(fresh)
    assert (copies.sent, copies.fetched) == (1, 1), "one copy of the known digest"
    for undo in (True, False, True):
        codec.delta_apply(shadow, deltas, list(news), undo=undo, verify=True)
        assert bits_of(shadow) == bits_of(boxed(olds if undo else news))
    assert (copies.sent, copies.fetched) == (4, 1)


def test_contiguous_bf16_tensors_of_a_model_share_a_launch(codec: Any) -> None:
    news, olds = models()
    extra = {
        name: changed(np.random.default_rng(8), 20_000, density=0.1, steps=0.7) for name in "xy"
    }
    fresh = [*boxed(news), *(tensor(new) for new, _ in extra.values())]
    shadow = [*boxed(olds), *(tensor(old) for _, old in extra.values())]
    none = [None] * len(fresh)
    codec._codec.launches.clear()
    deltas = codec.delta_pack(fresh, shadow, block_elements=BLOCK, base_digests=none)
    assert bits_of(shadow) == bits_of(fresh)
    assert [one.digest for one in deltas] == [
        reference.digest(one.contiguous().view(-1).numpy().view(f"u{one.element_size()}"))
        for one in fresh
    ]
    # The strided one and those of 8 and 32 bits are alone.
    launches = [one for one in codec._codec.launches if one != "digest"]
    assert launches == ["delta_pack_16k"] * 3 + ["delta_pack_flat_16k"]


@pytest.mark.parametrize("undo", [False, True])
def test_tensors_of_a_model_are_changed_together_or_not_at_all(codec: Any, *, undo: bool) -> None:
    news, olds = models()
    none = [None] * len(news)
    packs = codec.delta_pack(boxed(news), boxed(olds), block_elements=BLOCK, base_digests=none)
    deltas = deltas_of(news, packs)
    payload = deltas[3].payload.copy()
    payload[-1] = 0xFFFFFFFF
    wrong = [*deltas[:3], replace(deltas[3], payload=payload), deltas[4]]
    held = boxed(news if undo else olds)
    before = bits_of(held)
    with pytest.raises(CorruptData, match=r"^d: block 1 "):
        codec.delta_apply(held, wrong, list(news), undo=undo)
    assert bits_of(held) == before
    changes = (news["c"] != olds["c"]).nonzero()[0]
    held[2][int(changes[0])] += 1
    before = bits_of(held)
    with pytest.raises(CorruptData, match=r"^c: the weights are not the (base|result) of the"):
        codec.delta_apply(held, deltas, list(news), undo=undo, verify=True)
    assert bits_of(held) == before
    with pytest.raises(InvalidArgument, match=r"^c: the delta is for 33 elements of 8 bits"):
        codec.delta_apply([*held[:2], *held[1:4]], deltas, list(news), undo=undo)


class KernelsOfTorch(TorchDispatchMode):
    """Notes the operators that launch a kernel on a GPU: no views, allocations, copies."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        is_view = any(
            one.alias_info and not one.alias_info.is_write for one in func._schema.returns
        )
        if not is_view and name not in {"empty", "copy_", "clone", "_local_scalar_dense"}:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_ages", [False, True])
def test_topk_with_a_threshold_is_one_launch_on_each_side(codec: Any, *, has_ages: bool) -> None:
    case = Case(BLOCK, 40_960, 0.05, 0.5)
    want = answer(case)
    threshold, shadow, held = 0x3A80, want.old.copy(), want.old.copy()
    mine = [np.zeros(case.count, np.uint8) if has_ages else None for _ in range(2)]
    options: dict[str, Any] = {"block_elements": BLOCK, "threshold": threshold}
    expected = HOST.delta_pack([want.new], [held], base_digests=[None], ages=mine[0], **options)
    options["base_digests"] = [expected[0].base_digest]
    options["ages"] = torch.from_numpy(mine[1]) if has_ages else None
    codec._codec.launches.clear()
    with KernelsOfTorch() as sending:
        found = codec.delta_pack([tensor(want.new)], [tensor(shadow)], **options)
    assert_same(found, expected)
    delta = Delta(case.count, BLOCK, 16, *found[0])
    assert 0 < delta.changed < (want.new != want.old).sum()
    pack = "delta_pack_16k" if has_ages else "delta_pack_flat_16k"
    assert (codec._codec.launches, sending.names) == ([pack], ["full"])
    codec._codec.launches.clear()
    with KernelsOfTorch() as receiving:
        positions, values = codec.topk_unpack(tensor(want.old), delta)
    assert positions.tolist() == np.flatnonzero(held != want.old).tolist()
    assert values.tolist() == held[positions].tolist()
    assert (codec._codec.launches, receiving.names) == (["topk_unpack"], [])


def test_table_of_another_length_is_refused(codec: Any) -> None:
    new, delta = tensor(answer(CASE).new.copy()), packed(CASE)
    ((entries, offsets, payload),) = gpu.tables_of([delta], new)
    with pytest.raises(InternalError, match="expected 3 blocks, got 2 entries and 3 offsets"):
        codec.apply_blocks([new], [(entries[1:], offsets, payload)], [BLOCK])


def test_ages_with_gaps_are_refused(codec: Any) -> None:
    new = tensor(answer(CASE).new.copy())
    ages = torch.zeros(new.numel(), 2, dtype=torch.int8)[:, 0]
    with pytest.raises(InvalidArgument, match=r"ages have strides \(2,\): pass a contiguous copy"):
        codec.delta_pack([new], [new.clone()], block_elements=BLOCK, base_digests=[None], ages=ages)


@pytest.mark.parametrize("other", [np.zeros(8, np.uint16), np.zeros(9, np.uint8)])
def test_delta_for_other_elements_is_refused(codec: Any, other: Bits) -> None:
    delta = delta_pack(np.ones(9, np.uint16), np.zeros(9, np.uint16))
    codec._codec.launches.clear()
    for refused in (
        lambda: codec.delta_apply([tensor(other)], [delta], ["w"], undo=False),
        lambda: codec.topk_unpack(tensor(other), delta),
    ):
        with pytest.raises(InvalidArgument, match="the delta is for 9 elements of 16 bits, and"):
            refused()
    assert codec._codec.launches == []
