"""The embedded codec on tensors, its kernels on this CPU: it hands them what they need."""

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose.errors import CorruptData, InternalError, InvalidArgument
from rose.transfer.codec.backend import HostBackend
from tests.kernels import on_cpu
from tests.kernels.cases import Case, answer
from tests.kernels.on_cpu import Box, KernelsOnCpu, Order, divisor
from tests.reference import delta as reference
from tests.reference.delta import Delta
from tests.vectors.delta_v2 import changed

torch = pytest.importorskip("torch")
TorchDispatchMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
embedded = pytest.importorskip("rose.kernels.embedded")
gpu = pytest.importorskip("rose.transfer.codec.gpu")
GpuBackend = gpu.GpuBackend

BLOCK = 16_384
HOST = HostBackend(isa=None)
CASES = [Case(BLOCK, 40_961, 0.05, 0.2, width=width) for width in (8, 16, 32)]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.width}_bits")


class LauncherOnCpu:
    """Takes the calls of `DeviceCodec`, and makes their structs as its binding does."""

    def __init__(self, library: Path) -> None:
        self._kernels = KernelsOnCpu(library, order=Order.SHUFFLED)
        self.launches: list[str] = []

    def _run(self, name: str, kind: Any, values: dict[str, Any], *boxes: str) -> None:
        count, stream = values["count"], values.pop("stream")
        assert stream == 7
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
                self._launch("delta_pack_16k", params, -(-params.count // block))
        self._launch_flat(flat, block)

    def _launch_flat(self, flat: list[ctypes.Structure], block: int) -> None:
        if flat:
            ctas = sum(-(-one.count // block) for one in flat)
            self._launch("delta_pack_flat_16k", on_cpu.flat_params(flat), ctas)
            flat.clear()

    def _launch(self, name: str, params: ctypes.Structure, ctas: int) -> None:
        self.launches.append(name)
        self._kernels.launch(name, params, blocks=ctas, threads=BLOCK // 128)

    def delta_apply(self, *, stream: int, bad_block: int, undo: bool, **columns: Any) -> None:
        assert stream == 7
        arrays, ctas = [], 0
        for row in zip(*columns.values(), strict=True):
            one = dict(zip(columns, row, strict=True))
            if one["count"] == 0:
                continue
            assert one.pop("block_elements") == BLOCK
            one["weights"] = box_at(one["weights"], one.pop("weights_box"), one["count"])
            arrays.append(on_cpu.ApplyArray(**one))
            ctas += -(-one["count"] // BLOCK)
        params = on_cpu.apply_params(
            arrays, block_elements=BLOCK, bad_block=bad_block, is_undo=undo
        )
        name = "delta_apply_digest" if arrays[0].digest else "delta_apply"
        self._launch(name, params, ctas)

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


@pytest.fixture
def codec(library: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(embedded, "_stream_of", lambda _: 7)
    made = object.__new__(embedded.EmbeddedCodec)
    made._codec = LauncherOnCpu(library)
    return made


def tensor(array: Any) -> Any:
    """The same memory as signed numbers, which torch has of every width."""
    return torch.from_numpy(array.view(f"i{array.itemsize}"))


def table(delta: Delta) -> tuple[Any, Any, Any]:
    entries = np.array(delta.entries, np.uint64)
    sizes = (entries >> np.uint64(44)).astype(np.int64)
    return (
        tensor(entries),
        torch.from_numpy(np.cumsum(sizes) - sizes),
        tensor(np.array(delta.payload, np.uint32)),
    )


def delta_of(blocks: Any, case: Case) -> Delta:
    entries = blocks.entries.numpy().view(np.uint64).tolist()
    assert blocks.ends.tolist() == np.cumsum([0, *(entry >> 44 for entry in entries)]).tolist()
    payload = blocks.arena[: int(blocks.words)].numpy().view(np.uint32).tolist()
    return Delta(case.count, BLOCK, entries, payload, case.width)


@each_case
def test_pack_and_apply_and_undo(codec: Any, case: Case) -> None:
    want = answer(case)
    new, shadow = tensor(want.new.copy()), tensor(want.old.copy())
    packed = codec.delta_pack(new, shadow, block_elements=BLOCK)
    assert delta_of(packed, case) == want.delta
    assert torch.equal(shadow, new)
    sums = packed.digest.numpy().view(np.uint64).tolist()
    assert tuple(sums) == reference.digest(want.new)
    assert codec.digest(new).numpy().view(np.uint64).tolist() == sums
    weights = tensor(want.old.copy())
    assert int(codec.delta_apply(weights, *table(want.delta), block_elements=BLOCK)) == -1
    assert torch.equal(weights, new)
    undone = codec.delta_apply(weights, *table(want.delta), block_elements=BLOCK, undo=True)
    assert int(undone) == -1
    assert torch.equal(weights, tensor(want.old))


@each_case
def test_part_of_a_tensor_is_taken_where_it_lies(codec: Any, case: Case) -> None:
    want = answer(case)
    new, old = (tensor(one.copy())[:40_000].view(50, 8, 100) for one in (want.new, want.old))
    part, target = (one[3:, :, 2:91].transpose(0, 1) for one in (new, old))
    wide = Case(BLOCK, part.numel(), width=case.width)
    flat = [one.contiguous().view(-1).numpy().view(want.new.dtype) for one in (part, target)]
    delta = reference.pack(flat[0], flat[1].copy(), block_elements=BLOCK)
    assert delta_of(codec.delta_pack(part, target, block_elements=BLOCK), wide) == delta
    assert torch.equal(part, target)
    assert int(codec.delta_apply(target, *table(delta), block_elements=BLOCK, undo=True)) == -1
    assert torch.equal(old, tensor(want.old)[:40_000].view(50, 8, 100))


def test_bad_block_has_its_number_in_the_table(codec: Any) -> None:
    case = CASES[1]
    delta = answer(case).delta
    delta = Delta(case.count, BLOCK, [*delta.entries[:2], delta.entries[2] ^ 1], delta.payload)
    weights = tensor(answer(case).old.copy())
    assert int(codec.delta_apply(weights, *table(delta), block_elements=BLOCK)) == 2


# ---- the back end of a GPU over these kernels


@each_case
def test_packs_are_fetched_as_the_host_packs_them(codec: Any, case: Case) -> None:
    want = answer(case)
    shadow = want.old.copy()
    options: dict[str, Any] = {"block_elements": BLOCK, "threshold": 0}
    expected = HOST.delta_pack(want.new, shadow.copy(), **options)
    found = GpuBackend(codec).delta_pack(tensor(want.new), tensor(shadow), **options)
    assert found.to_bytes() == expected.to_bytes()
    nothing = GpuBackend(codec).delta_pack(tensor(want.new), tensor(shadow), **options)
    assert (nothing.changed, len(nothing.payload)) == (0, 0)


@pytest.mark.parametrize("room", [1, 700, 30_000])
def test_blocks_without_room_are_packed_again(
    codec: Any, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(embedded, "_ARENA_WORDS_MIN", room)
    monkeypatch.setattr(embedded, "_ELEMENTS_OF_WORD", 1 << 30)
    wants = [answer(Case(BLOCK, 40_961, share, 0.2)) for share in (0.05, 0.9, 0.02)]
    shadows = [one.old.copy() for one in wants]
    found = GpuBackend(codec).delta_pack_all(
        [tensor(one.new) for one in wants],
        [tensor(one) for one in shadows],
        block_elements=BLOCK,
        base_digests=[None] * len(wants),
    )
    for want, delta, shadow in zip(wants, found, shadows, strict=True):
        expected = HOST.delta_pack(want.new, want.old.copy(), block_elements=BLOCK, threshold=0)
        assert delta.to_bytes() == expected.to_bytes()
        assert np.array_equal(shadow, want.new)


def test_arena_has_a_word_for_eight_elements() -> None:
    like = torch.zeros(1 << 22, dtype=torch.int16)
    base = torch.zeros(2, dtype=torch.int64)
    packed, _ = embedded._room_for([like], base, BLOCK, None)
    assert packed.arena.numel() == like.numel() // 8
    small, _ = embedded._room_for([like[:BLOCK]], base, BLOCK, None)
    assert small.arena.numel() == BLOCK // 2


@each_case
def test_device_refuses_what_the_host_refuses(codec: Any, case: Case) -> None:
    rng = np.random.default_rng(case.width)
    want = answer(case)
    sound = HOST.delta_pack(want.new, want.old.copy(), block_elements=BLOCK, threshold=0)
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
        backend = GpuBackend(codec)
        try:
            changes = HOST.topk_unpack(expected, delta)
            HOST.delta_apply(expected, delta, undo=undo)
        except CorruptData as refusal:
            refusals += 1
            says = re.escape(str(refusal))
            with pytest.raises(CorruptData, match=says):
                backend.topk_unpack(tensor(held), delta)
            with pytest.raises(CorruptData, match=says):
                backend.delta_apply(tensor(held), delta, undo=undo)
        else:
            assert [one.tolist() for one in backend.topk_unpack(tensor(held), delta)] == [
                one.tolist() for one in changes
            ]
            backend.delta_apply(tensor(held), delta, undo=undo)
        assert np.array_equal(held, expected)
    assert 0 < refusals < 40


def test_device_that_refuses_a_sound_delta_is_a_bug_and_changes_nothing(
    codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = answer(CASES[1])
    delta = HOST.delta_pack(want.new, want.old.copy(), block_elements=BLOCK, threshold=0)
    held, apply = want.old.copy(), codec.delta_apply_all

    def refuse(*args: Any, **options: Any) -> Any:
        bad, sums = apply(*args, **options)
        return bad.fill_(1), sums

    monkeypatch.setattr(codec, "delta_apply_all", refuse)
    with pytest.raises(InternalError, match="the device refuses block 1 of a sound delta"):
        GpuBackend(codec).delta_apply(tensor(held), delta, undo=False)
    assert np.array_equal(held, want.old)
    # The host has checked it: nobody waits to see what the device says.
    GpuBackend(codec).delta_apply(tensor(held), replace(delta, is_checked=True), undo=False)
    assert np.array_equal(held, want.new)


@pytest.mark.parametrize("density", [0.05, 0.9])
def test_apply_of_a_damaged_or_misplaced_delta_is_noticed_and_undone(
    codec: Any, density: float
) -> None:
    want = answer(Case(BLOCK, 40_961, density, 0.2))
    delta = HOST.delta_pack(want.new, want.old.copy(), block_elements=BLOCK, threshold=0)
    backend = GpuBackend(codec)
    places = (want.new != want.old).nonzero()[0]
    touched = want.old.copy()
    touched[places[len(places) // 2]] ^= 0x4000
    other = HOST.delta_pack(
        np.where(want.new == want.old, want.old, want.old + np.uint16(1)),
        want.old.copy(),
        block_elements=BLOCK,
        threshold=0,
    )
    # A delta with another payload that is well formed, and weights of another version.
    damaged = replace(delta, entries=other.entries, payload=other.payload)
    for held, wrong in ((want.old.copy(), damaged), (touched, delta), (want.new.copy(), delta)):
        before = held.copy()
        backend.delta_apply(tensor(held.copy()), wrong, undo=False)
        for is_checked in (False, True):
            with pytest.raises(CorruptData, match="the weights are not the base of the delta"):
                backend.delta_apply(
                    tensor(held), replace(wrong, is_checked=is_checked), undo=False, verify=True
                )
            assert np.array_equal(held, before)
    codec._codec.launches.clear()
    backend.delta_apply(tensor(held := want.old.copy()), delta, undo=False, verify=True)
    assert np.array_equal(held, want.new)
    assert codec._codec.launches == ["delta_apply_digest"], "the weights are read once"


def test_upper_halves_of_floats_are_changed_and_digested_in_place(codec: Any) -> None:
    want = answer(CASES[1])
    delta = HOST.delta_pack(want.new, want.old.copy(), block_elements=BLOCK, threshold=0)
    floats = torch.from_numpy((want.old.astype(np.uint32) << 16).view(np.float32))
    halves = floats.view(torch.int16)[1::2]
    backend = GpuBackend(codec)
    backend.delta_apply(halves, delta, undo=False, verify=True)
    assert np.array_equal(floats.numpy().view(np.uint32), want.new.astype(np.uint32) << 16)
    assert backend.digest(halves) == delta.digest


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


class Copies:
    """Counts what goes to the device and comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.fetched = 0
        to_device, to_host = gpu.on_gpu_of, gpu.on_host

        def on_gpu_of(*args: Any) -> Any:
            self.sent += 1
            return to_device(*args)

        def on_host(*args: Any) -> Any:
            self.fetched += 1
            return to_host(*args)

        monkeypatch.setattr(gpu, "on_gpu_of", on_gpu_of)
        monkeypatch.setattr(gpu, "on_host", on_host)


def test_model_is_packed_and_applied_as_its_tensors_are_with_one_copy_each(
    codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    news, olds = models()
    expected = [
        HOST.delta_pack(new, old.copy(), block_elements=BLOCK, threshold=0)
        for new, old in zip(news.values(), olds.values(), strict=True)
    ]
    known = [None, None, expected[2].base_digest, None, None]
    copies, backend = Copies(monkeypatch), GpuBackend(codec)
    fresh, shadow = boxed(news), boxed(olds)
    deltas = backend.delta_pack_all(fresh, shadow, block_elements=BLOCK, base_digests=known)
    assert [one.to_bytes() for one in deltas] == [one.to_bytes() for one in expected]
    assert bits_of(shadow) == bits_of(fresh)
    assert (copies.sent, copies.fetched) == (1, 1), "the digest that is known"
    for undo in (True, False, True):
        backend.delta_apply_all(shadow, deltas, list(news), undo=undo, verify=True)
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
    deltas = GpuBackend(codec).delta_pack_all(
        fresh, shadow, block_elements=BLOCK, base_digests=none
    )
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
    backend = GpuBackend(codec)
    none = [None] * len(news)
    deltas = backend.delta_pack_all(
        boxed(news), boxed(olds), block_elements=BLOCK, base_digests=none
    )
    payload = deltas[3].payload.copy()
    payload[-1] = 0xFFFFFFFF
    wrong = [*deltas[:3], replace(deltas[3], payload=payload), deltas[4]]
    held = boxed(news if undo else olds)
    before = bits_of(held)
    with pytest.raises(CorruptData, match=r"^d: block 1 "):
        backend.delta_apply_all(held, wrong, list(news), undo=undo)
    assert bits_of(held) == before
    changes = (news["c"] != olds["c"]).nonzero()[0]
    held[2][int(changes[0])] += 1
    before = bits_of(held)
    with pytest.raises(CorruptData, match=r"^c: the weights are not the (base|result) of the"):
        backend.delta_apply_all(held, deltas, list(news), undo=undo, verify=True)
    assert bits_of(held) == before
    with pytest.raises(InvalidArgument, match=r"^c: the delta is for 33 elements of 8 bits"):
        backend.delta_apply_all([*held[:2], *held[1:4]], deltas, list(news), undo=undo)


def test_topk_with_ages(codec: Any) -> None:
    case = CASES[1]
    want = answer(case)
    ages = reference.Ages(np.resize(np.arange(9, dtype=np.uint8), case.count), 8)
    mine, shadow, old = torch.from_numpy(ages.counts.copy()), want.old.copy(), want.old.copy()
    least = codec.topk_threshold(
        tensor(want.new), tensor(want.old), budget=400, ages=mine, age_limit=8
    )
    assert int(least) == reference.topk_threshold(want.new, want.old, 400, ages)
    delta = reference.pack(want.new, old, block_elements=BLOCK, threshold=int(least), ages=ages)
    options = {"block_elements": BLOCK, "threshold": least, "ages": mine, "age_limit": 8}
    packed = codec.delta_pack(tensor(want.new), tensor(shadow), **options)
    assert delta_of(packed, case) == delta
    assert np.array_equal(mine.numpy(), ages.counts)


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
    expected = HOST.delta_pack(want.new, held, ages=mine[0], **options)
    assert 0 < expected.changed < (want.new != want.old).sum()
    options["base_digest"] = expected.base_digest
    options["ages"] = torch.from_numpy(mine[1]) if has_ages else None
    backend = GpuBackend(codec)
    with KernelsOfTorch() as sending:
        delta = backend.delta_pack(tensor(want.new), tensor(shadow), **options)
    assert delta.to_bytes() == expected.to_bytes()
    pack = "delta_pack_16k" if has_ages else "delta_pack_flat_16k"
    assert (codec._codec.launches, sending.names) == ([pack], ["full"])
    codec._codec.launches.clear()
    with KernelsOfTorch() as receiving:
        positions, values = backend.topk_unpack(tensor(want.old), delta)
    assert positions.tolist() == np.flatnonzero(held != want.old).tolist()
    assert values.tolist() == held[positions].tolist()
    assert (codec._codec.launches, receiving.names) == (["topk_unpack"], [])


def test_a_table_of_another_length_and_ages_that_lie_apart_are_refused(codec: Any) -> None:
    new = tensor(answer(CASES[1]).new.copy())
    entries, offsets, payload = table(answer(CASES[1]).delta)
    with pytest.raises(InternalError, match="expected 3 blocks, got 2 entries and 3 offsets"):
        codec.delta_apply(new, entries[1:], offsets, payload, block_elements=BLOCK)
    ages = torch.zeros(new.numel(), 2, dtype=torch.int8)[:, 0]
    with pytest.raises(InvalidArgument, match=r"ages have strides \(2,\): pass a contiguous copy"):
        codec.delta_pack(new, new.clone(), block_elements=BLOCK, ages=ages)
