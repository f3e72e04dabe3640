"""The embedded codec on tensors, its kernels on this CPU: it hands them what they need."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose.errors import InternalError, InvalidArgument
from tests.kernels import on_cpu
from tests.kernels.cases import Case, answer
from tests.kernels.on_cpu import Box, KernelsOnCpu, Order, divisor
from tests.reference import delta as reference
from tests.reference.delta import Delta

torch = pytest.importorskip("torch")
embedded = pytest.importorskip("rose.kernels.embedded")

BLOCK = 16_384
CASES = [Case(BLOCK, 40_961, 0.05, 0.2, width=width) for width in (8, 16, 32)]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.width}_bits")


class LauncherOnCpu:
    """Takes the calls of `DeviceCodec`, and makes their structs as its binding does."""

    def __init__(self, library: Path) -> None:
        self._kernels = KernelsOnCpu(library, order=Order.SHUFFLED)

    def _run(self, name: str, kind: Any, values: dict[str, Any], *boxes: str) -> None:
        count, stream = values["count"], values.pop("stream")
        assert stream == 7
        for one in boxes:
            values[one] = box_at(values[one], values.pop(f"{one}_box"), count)
        blocks = -(-count // values["block_elements"]) if "block_elements" in values else 2
        threads = on_cpu.threads_of(name, values.get("block_elements", BLOCK * 4))
        if name == "digest":
            threads = 256
        self._kernels.launch(name, kind(**values), blocks=blocks, threads=threads)

    def delta_pack(self, **values: Any) -> None:
        self._run("delta_pack", on_cpu.PackParams, values, "bits", "shadow")

    def delta_apply(self, **values: Any) -> None:
        values["is_undo"] = values.pop("undo")
        self._run("delta_apply", on_cpu.ApplyParams, values, "weights")

    def topk_unpack(self, **values: Any) -> None:
        self._run("topk_unpack", on_cpu.UnpackParams, values, "base")

    def topk_histogram(self, **values: Any) -> None:
        self._run("topk_histogram", on_cpu.HistogramParams, values, "bits", "shadow")

    def topk_threshold(self, *, stream: int, **values: Any) -> None:
        assert stream == 7
        params = on_cpu.ThresholdParams(**values)
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


def gathered(blocks: Any, case: Case) -> Delta:
    entries = blocks.entries.numpy().view(np.uint64).tolist()
    arena = blocks.arena.numpy().view(np.uint32)
    payload = [
        word
        for entry, offset in zip(entries, blocks.offsets.tolist(), strict=True)
        for word in arena[offset : offset + (entry >> 44)].tolist()
    ]
    return Delta(case.count, BLOCK, entries, payload, case.width)


@each_case
def test_pack_and_apply_and_undo(codec: Any, case: Case) -> None:
    want = answer(case)
    new, shadow = tensor(want.new.copy()), tensor(want.old.copy())
    packed = codec.delta_pack(new, shadow, block_elements=BLOCK)
    assert gathered(packed, case) == want.delta
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
    assert gathered(codec.delta_pack(part, target, block_elements=BLOCK), wide) == delta
    assert torch.equal(part, target)
    assert int(codec.delta_apply(target, *table(delta), block_elements=BLOCK, undo=True)) == -1
    assert torch.equal(old, tensor(want.old)[:40_000].view(50, 8, 100))


def test_bad_block_has_its_number_in_the_table(codec: Any) -> None:
    case = CASES[1]
    delta = answer(case).delta
    delta = Delta(case.count, BLOCK, [*delta.entries[:2], delta.entries[2] ^ 1], delta.payload)
    weights = tensor(answer(case).old.copy())
    assert int(codec.delta_apply(weights, *table(delta), block_elements=BLOCK)) == 2
    with pytest.raises(InternalError, match="the device refuses block 2 of a sound delta"):
        codec.topk_unpack(weights, *table(delta), block_elements=BLOCK)


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
    assert gathered(packed, case) == delta
    assert np.array_equal(mine.numpy(), ages.counts)
    positions, values = codec.topk_unpack(tensor(want.old), *table(delta), block_elements=BLOCK)
    found = positions.tolist(), values.numpy().view(np.uint16).tolist()
    assert found == reference.topk_unpack(delta, want.old)


def test_a_table_of_another_length_and_ages_that_lie_apart_are_refused(codec: Any) -> None:
    new = tensor(answer(CASES[1]).new.copy())
    entries, offsets, payload = table(answer(CASES[1]).delta)
    with pytest.raises(InternalError, match="3 blocks have 2 entries and 3 offsets"):
        codec.delta_apply(new, entries[1:], offsets, payload, block_elements=BLOCK)
    ages = torch.zeros(new.numel(), 2, dtype=torch.int8)[:, 0]
    with pytest.raises(InvalidArgument, match=r"ages have strides \(2,\): pass a contiguous copy"):
        codec.delta_pack(new, new.clone(), block_elements=BLOCK, ages=ages)
