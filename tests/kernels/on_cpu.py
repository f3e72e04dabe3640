"""The CUDA kernels as functions on arrays: their source compiled for a CPU, a fiber per thread."""

import ctypes
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference import delta as reference
from tests.reference.delta import Ages, Bits, Delta

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# nvcc's dialect: vectors are read through pointers of their own type.
FLAGS = shlex.split("-std=c++20 -shared -fPIC -fno-strict-aliasing -Wall -Wextra -Werror")
SANITISED = shlex.split(
    "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
)
PLAIN = ["-O2"]
ELEMENTS_OF_THREAD = 128
BLOCK_MAX = 65_536
DEFERRED = 15
KEYS = 1 << 15
BINS = KEYS + 1  # of the histogram: the last counts what is due
MASK64 = (1 << 64) - 1
POISON = 0xA5
Words = npt.NDArray[np.uint32]


class Order(Enum):
    """In which order threads run between two barriers, and CTAs of a grid."""

    FORWARD = 0
    BACKWARD = 1
    SHUFFLED = 2


def build(target: Path, flags: list[str]) -> Path:
    """Compile the kernels for this CPU."""
    command = ["g++", *FLAGS, "-Wno-unknown-pragmas", *flags, f"-I{ROOT / 'kernels'}", f"-I{HERE}"]
    done = subprocess.run(
        [*command, HERE / "kernels_on_cpu.cpp", "-o", target],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


class Buffer:
    """Memory of `size` bytes at an address that is `shift` above a multiple of 16, poisoned.

    Poisoned guards lie on both sides, unless a sanitizer watches them.
    """

    def __init__(self, size: int, *, guard: int, shift: int = 0) -> None:
        self._whole = np.full(guard + 16 + shift + size + guard, POISON, np.uint8)
        base = self._whole.ctypes.data + guard
        self._start = guard + -base % 16 + shift
        if not guard:  # the end is where the allocation ends; malloc aligns to 16
            assert base % 16 == 0
            self._whole = np.full(shift + size, POISON, np.uint8)
            self._start = shift
        self._size = size
        self.address = self._whole.ctypes.data + self._start

    def view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return self._whole[self._start : self._start + self._size].view(dtype)

    def check(self) -> None:
        outside = self._whole.copy()
        outside[self._start : self._start + self._size] = POISON
        assert (outside == POISON).all(), "a kernel wrote outside its memory"


class Box(ctypes.Structure):
    """`kernels::Box`: the elements of an array, wherever they lie."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * 9),
        ("strides", ctypes.c_uint64 * 4),
    )


def divisor(number: int) -> tuple[int, int, int]:
    """`kernels::Divisor`: a number, and what a division by it is made of."""
    if number < 2:
        return number, 0, 0
    shift = (number - 1).bit_length() - 1
    return number, -(-(1 << (64 + shift)) // number), shift


def box_of(address: int, array: npt.NDArray[Any]) -> Box:
    """Describe an array of up to four dimensions whose first element lies at `address`."""
    sizes = [1] * (4 - array.ndim) + list(array.shape)
    strides = [0] * (4 - array.ndim) + [stride // array.itemsize for stride in array.strides]
    numbers = [one for size in sizes[1:] for one in divisor(size)]
    return Box(address, (ctypes.c_uint64 * 9)(*numbers), (ctypes.c_uint64 * 4)(*strides))


def params(names: str) -> type[ctypes.Structure]:
    """Make the struct of a kernel: every field is eight bytes wide, but for `name:kind`."""
    kinds = {"": ctypes.c_uint64, "box": Box}
    fields: list[tuple[str, Any]] = []
    for name in names.split():
        bare, _, kind = name.partition(":")
        fields.append((bare, kinds[kind]))
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


PackParams = params(
    "bits:box shadow:box width count block_elements threshold ages age_limit arena arena_words "
    "newest first_block entries offsets digest first_index seed"
)
FLAT_ARRAYS = 63


class FlatArray(ctypes.Structure):
    """`kernels::FlatArray`: one array of a launch of a flat kernel."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in "bits shadow count first_cta entries offsets digest first_index".split()
    )


class PackFlatParams(ctypes.Structure):
    """`kernels::DeltaPackFlatParams`."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in "arrays threshold arena arena_words newest first_block seed".split()
        ),
        ("at", FlatArray * FLAT_ARRAYS),
    )


def flat_params(packs: Sequence[ctypes.Structure]) -> PackFlatParams:
    """Make the struct of one flat launch from those of single arrays, as the launcher does."""
    flat, ctas = PackFlatParams(arrays=len(packs)), 0
    for name in "threshold arena arena_words newest first_block seed".split():
        setattr(flat, name, getattr(packs[0], name))
    for at, one in zip(flat.at, packs, strict=False):
        at.bits, at.shadow, at.first_cta = one.bits.base, one.shadow.base, ctas
        for name in "count entries offsets digest first_index".split():
            setattr(at, name, getattr(one, name))
        ctas += -(-one.count // one.block_elements)
    return flat


APPLY_ARRAYS = 23
ApplyArray = params(
    "entries offsets payload payload_words weights:box width count first_cta digest"
)


class ApplyParams(ctypes.Structure):
    """`kernels::DeltaApplyParams`."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in "arrays block_elements bad_block is_undo".split()),
        ("at", ApplyArray * APPLY_ARRAYS),
    )


def apply_params(
    arrays: Sequence[ctypes.Structure], *, block_elements: int, bad_block: int, is_undo: bool
) -> ApplyParams:
    """Make the struct of one launch of an apply kernel, as the launcher does."""
    made, ctas = ApplyParams(len(arrays), block_elements, bad_block, is_undo), 0
    for i, one in enumerate(arrays):
        made.at[i] = one
        made.at[i].first_cta = ctas
        ctas += -(-one.count // block_elements)
    return made


UnpackParams = params(
    "entries offsets first_outputs payload payload_words base:box width count block_elements "
    "positions values output_count bad_block"
)
DigestParams = params("bits:box width count first_index seed sums")
HistogramParams = params("bits:box shadow:box count ages age_limit histogram")
ThresholdParams = params("histogram budget threshold")


def threads_of(kernel: str, block_elements: int) -> int:
    """Return the threads of a CTA that handles a delta block."""
    if kernel in {"delta_apply", "delta_apply_digest", "topk_unpack"}:
        return min(256, block_elements // ELEMENTS_OF_THREAD)
    return block_elements // ELEMENTS_OF_THREAD


# Blocks before those of a launch, with three words each. The last 32 do not know their ends yet.
BEFORE, BEFORE_WORDS = 40, 120


def ends_of(blocks: int, *, before: int = 0) -> npt.NDArray[np.uint64]:
    """Make the offsets of a launch; `before` is 0 or BEFORE."""
    if before == 0:  # without blocks nothing is launched
        return np.full(blocks + 1, MASK64 if blocks else 0, np.uint64)
    ends = [3 * i if i <= before - 32 else 1 << 63 | 3 for i in range(before + 1)]
    return np.array([*ends, *[MASK64] * blocks], np.uint64)


@dataclass
class Packed:
    """What a pack left behind."""

    entries: list[int]
    ends: list[int]  # where each payload begins, and where the last one ends
    arena: Words
    digest: tuple[int, int]

    def payload(self) -> list[int]:
        """Return the payload of an array whose blocks all fit."""
        sizes = np.diff(np.array(self.ends, np.int64)).tolist()
        assert sizes == [entry >> 44 for entry in self.entries]
        return self.arena[self.ends[0] : self.ends[-1]].tolist()


@dataclass
class Placed:
    """An array in a buffer, its elements as they lay in the memory that they were taken from."""

    buffer: Buffer
    box: Box
    view: npt.NDArray[Any]


class KernelsOnCpu:
    """Each kernel, run in one order of its threads."""

    def __init__(self, library: Path, *, order: Order, guard: int = 64, shift: int = 0) -> None:
        self._library = ctypes.CDLL(str(library))
        self._order = order
        self._guard = guard
        self._shift = shift  # of every array of elements, and of their ages
        self._buffers: list[Buffer] = []

    def _put(self, array: npt.NDArray[Any], *, shift: int = 0) -> Buffer:
        buffer = Buffer(array.nbytes, guard=self._guard, shift=shift)
        buffer.view(array.dtype)[:] = array
        self._buffers.append(buffer)
        return buffer

    def _empty(self, count: int, dtype: npt.DTypeLike, *, shift: int = 0) -> Buffer:
        buffer = Buffer(count * np.dtype(dtype).itemsize, guard=self._guard, shift=shift)
        self._buffers.append(buffer)
        return buffer

    def _place(self, array: npt.NDArray[Any]) -> Placed:
        """Place all the memory that an array is a view of, moved by the shift."""
        owner = array if array.base is None else np.asarray(array.base)
        offset = array.ctypes.data - owner.ctypes.data
        shift = self._shift // array.itemsize * array.itemsize
        buffer = self._put(owner.reshape(-1), shift=shift)
        whole = buffer.view(np.uint8)
        view = np.ndarray(array.shape, array.dtype, whole.data, offset, array.strides)
        return Placed(buffer, box_of(buffer.address + offset, array), view)

    def launch(self, name: str, values: ctypes.Structure, *, blocks: int, threads: int) -> None:
        run = getattr(self._library, f"run_{name}_kernel")
        run.restype = ctypes.c_char_p
        error = run(ctypes.byref(values), blocks, threads, self._order.value, 1)
        assert error == b"", error.decode()
        for buffer in self._buffers:
            buffer.check()
        self._buffers.clear()

    def pack(
        self,
        new: Bits,
        shadow: Bits | None,
        *,
        block_elements: int,
        threshold: int | None = None,
        ages: Ages | None = None,
        arena_words: int | None = None,
        first_index: int = 0,
        seed: int = 0,
        has_digest: bool = True,
        is_flat: bool = False,
        lie_words: int = 0,
        lie_shift: int = 0,
    ) -> Packed:
        """Pack with one of the kernels; moves `shadow`.

        The lies are a larger arena and a wrong address for the entries.
        """
        blocks = -(-new.size // block_elements)
        words = blocks * block_elements * new.itemsize // 4 if arena_words is None else arena_words
        bits, old = self._place(new), None if shadow is None else self._place(shadow)
        limit = self._put(np.array([threshold or 0], np.uint32))
        aged = None if ages is None else self._put(ages.counts, shift=self._shift)
        arena = self._empty(words, np.uint32)
        newest, sums = self._put(np.full(1, MASK64, np.uint64)), self._put(np.zeros(2, np.uint64))
        entries, ends = self._empty(blocks, np.uint64), self._put(ends_of(blocks))
        if has_digest:
            held = np.zeros_like(new) if shadow is None else shadow
            sums.view(np.uint64)[:] = reference.digest(
                held.reshape(-1), first_index=first_index, seed=seed
            )
        values = PackParams(
            bits=bits.box,
            shadow=Box() if old is None else old.box,
            width=8 * new.itemsize,
            count=new.size,
            block_elements=block_elements,
            threshold=0 if threshold is None else limit.address,
            ages=0 if aged is None else aged.address,
            age_limit=0 if ages is None else ages.limit,
            arena=arena.address,
            arena_words=words + lie_words,
            newest=newest.address,
            entries=entries.address + lie_shift,
            offsets=ends.address,
            digest=sums.address if has_digest else 0,
            first_index=first_index,
            seed=seed,
        )
        general = "delta_pack" if block_elements == BLOCK_MAX else "delta_pack_16k"
        kernel = f"delta_pack_flat_{block_elements // 1024}k" if is_flat else general
        taken = flat_params([values]) if is_flat else values
        self._launch_blocks(kernel, taken, blocks, block_elements)
        if shadow is not None and old is not None:
            shadow[...] = old.view
            assert_only_in(shadow, old)
        if ages is not None and aged is not None:
            ages.counts[:] = aged.view(np.uint8)
        first, second = sums.view(np.uint64).tolist()
        return Packed(
            entries.view(np.uint64).tolist(),
            ends.view(np.uint64).tolist(),
            arena.view(np.uint32).copy(),
            (first, second),
        )

    def pack_all(
        self, news: Sequence[Bits], shadows: Sequence[Bits], *, block_elements: int
    ) -> list[Packed]:
        """Pack arrays with one launch of a flat kernel, after other arrays; moves the shadows."""
        words, before = BEFORE_WORDS + sum(one.size for one in news), BEFORE
        blocks = sum(-(-new.size // block_elements) for new in news)
        arena = self._empty(words, np.uint32)
        newest = self._put(np.full(1, before - 1, np.uint64))
        entries = self._empty(blocks, np.uint64)
        ends = self._put(ends_of(blocks, before=before))
        packs, parts, first = [], [], 0
        for new, shadow in zip(news, shadows, strict=True):
            mine = -(-new.size // block_elements)
            old = self._place(shadow)
            sums = self._put(np.array(reference.digest(shadow, seed=3), np.uint64))
            packs.append(
                PackParams(
                    bits=self._place(new).box,
                    shadow=old.box,
                    width=16,
                    count=new.size,
                    block_elements=block_elements,
                    arena=arena.address,
                    arena_words=words,
                    newest=newest.address,
                    first_block=before + first,
                    entries=entries.address + 8 * first,
                    offsets=ends.address + 8 * (before + first),
                    digest=sums.address,
                    seed=3,
                )
            )
            parts.append((old, slice(first, first + mine), sums))
            first += mine
        name = f"delta_pack_flat_{block_elements // 1024}k"
        self._launch_blocks(name, flat_params(packs), blocks, block_elements)
        for shadow, (old, *_) in zip(shadows, parts, strict=True):
            shadow[...] = old.view
        found = [BEFORE_WORDS, *ends.view(np.uint64)[before + 1 :].tolist()]
        return [
            Packed(
                entries.view(np.uint64)[mine].tolist(),
                found[mine.start : mine.stop + 1],
                arena.view(np.uint32).copy(),
                tuple(sums.view(np.uint64).tolist()),
            )
            for _, mine, sums in parts
        ]

    def _launch_blocks(
        self, name: str, values: ctypes.Structure, blocks: int, block_elements: int
    ) -> None:
        self.launch(name, values, blocks=blocks, threads=threads_of(name, block_elements))

    def apply(self, delta: Delta, weights: Bits, *, undo: bool = False) -> int | None:
        """Apply in place; return the least block that was corrupt."""
        return self.apply_all([delta], [weights], undo=undo, has_digest=False)[0]

    def apply_all(
        self,
        deltas: Sequence[Delta],
        weights: Sequence[Bits],
        *,
        undo: bool = False,
        has_digest: bool = True,
    ) -> tuple[int | None, list[tuple[int, ...]]]:
        """Apply in place with one launch; return the least corrupt block, and the digests."""
        bad = self._put(np.full(1, MASK64, np.uint64))
        arrays, targets, sums = [], [], []
        for delta, one in zip(deltas, weights, strict=True):
            entries, offsets, payload = self._put_delta(delta)
            targets.append(self._place(one))
            sums.append(self._put(np.array(reference.digest(one.reshape(-1)), np.uint64)))
            arrays.append(
                ApplyArray(
                    entries=entries.address,
                    offsets=offsets.address,
                    payload=payload.address,
                    payload_words=len(delta.payload),
                    weights=targets[-1].box,
                    width=delta.width,
                    count=delta.count,
                    digest=sums[-1].address if has_digest else 0,
                )
            )
        block = deltas[0].block_elements
        values = apply_params(arrays, block_elements=block, bad_block=bad.address, is_undo=undo)
        name = "delta_apply_digest" if has_digest else "delta_apply"
        self._launch_blocks(name, values, sum(len(one.entries) for one in deltas), block)
        for one, target in zip(weights, targets, strict=True):
            one[...] = target.view
            assert_only_in(one, target)
        return bad_block(bad), [tuple(one.view(np.uint64).tolist()) for one in sums]

    def unpack(
        self, delta: Delta, base: Bits, *, output_count: int | None = None
    ) -> tuple[list[int], list[int], int | None]:
        """List positions and values; the places of a corrupt block keep their poison."""
        entries, offsets, payload = self._put_delta(delta)
        changed = [entry >> 4 & 0xFFFFF for entry in delta.entries]
        firsts = self._put(np.cumsum([0, *changed])[:-1].astype(np.uint64))
        positions = self._empty(sum(changed), np.int64)
        new = self._empty(sum(changed), base.dtype, shift=base.itemsize)
        bad = self._put(np.full(1, MASK64, np.uint64))
        values = UnpackParams(
            entries=entries.address,
            offsets=offsets.address,
            first_outputs=firsts.address,
            payload=payload.address,
            payload_words=len(delta.payload),
            base=self._place(base).box,
            width=delta.width,
            count=delta.count,
            block_elements=delta.block_elements,
            positions=positions.address,
            values=new.address,
            output_count=sum(changed) if output_count is None else output_count,
            bad_block=bad.address,
        )
        self._launch_blocks("topk_unpack", values, len(delta.entries), delta.block_elements)
        return positions.view(np.int64).tolist(), new.view(base.dtype).tolist(), bad_block(bad)

    def _put_delta(self, delta: Delta) -> tuple[Buffer, Buffer, Buffer]:
        sizes = [entry >> 44 for entry in delta.entries]
        return (
            self._put(np.array(delta.entries, np.uint64)),
            self._put(np.cumsum([0, *sizes])[:-1].astype(np.uint64)),
            self._put(np.array(delta.payload, np.uint32)),
        )

    def digest(
        self, bits: Bits, *, first_index: int = 0, seed: int = 0, blocks: int = 2
    ) -> tuple[int, int]:
        sums = self._put(np.zeros(2, np.uint64))
        values = DigestParams(
            bits=self._place(bits).box,
            width=8 * bits.itemsize,
            count=bits.size,
            first_index=first_index,
            seed=seed,
            sums=sums.address,
        )
        self.launch("digest", values, blocks=blocks, threads=256)
        first, second = sums.view(np.uint64).tolist()
        return first, second

    def histogram(
        self, new: Bits, shadow: Bits, *, ages: Ages | None = None, blocks: int = 2
    ) -> npt.NDArray[np.uint64]:
        histogram = self._put(np.zeros(BINS, np.uint64))
        aged = None if ages is None else self._put(ages.counts, shift=self._shift)
        values = HistogramParams(
            bits=self._place(new).box,
            shadow=self._place(shadow).box,
            count=new.size,
            ages=0 if aged is None else aged.address,
            age_limit=0 if ages is None else ages.limit,
            histogram=histogram.address,
        )
        self.launch("topk_histogram", values, blocks=blocks, threads=512)
        return histogram.view(np.uint64).copy()

    def threshold(self, histogram: npt.NDArray[np.uint64], *, budget: int) -> int:
        answer = self._empty(1, np.uint32)
        values = ThresholdParams(
            histogram=self._put(histogram).address, budget=budget, threshold=answer.address
        )
        self.launch("topk_threshold", values, blocks=1, threads=1024)
        return int(answer.view(np.uint32)[0])


def bad_block(word: Buffer) -> int | None:
    number = int(word.view(np.uint64)[0])
    return None if number == MASK64 else number


def assert_only_in(array: npt.NDArray[Any], placed: Placed) -> None:
    """Check that nothing between the elements of a box changed."""
    owner = array if array.base is None else np.asarray(array.base)
    assert placed.buffer.view(np.uint8).tobytes() == owner.reshape(-1).tobytes()
