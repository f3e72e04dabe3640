"""What the machine code of the codec's kernels costs, per 256 elements at 1 % change.

Machine code for sm_90 is run. That for every device is also counted without a run.

`python -m tests.kernels.sass_figures` writes the committed figures to `bench/results/sass.json`.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.building.project import SETUP
from tests.kernels import on_cpu
from tests.kernels.on_cpu import ELEMENTS_OF_THREAD, MASK64, ROOT, box_of, threads_of
from tests.kernels.sass import Kernel, compiled, nvcc_version
from tests.kernels.sass_run import Memory, Run
from tests.reference import delta as reference
from tests.reference.delta import Delta

FILE: Final = ROOT / "bench" / "results" / "sass.json"
ARCHITECTURES: Final[tuple[int, ...]] = SETUP.ARCHITECTURES
RUN: Final = 90  # the device whose machine code is run
BLOCK: Final = 65_536
SMALL: Final = 16_384
SEED: Final = 5
Bits = npt.NDArray[np.uint16]
# More of these is better; of all others less.
UP: Final = frozenset({"occupancy", "loads_in_flight"})


@dataclass(frozen=True, slots=True)
class Figures:
    """What one launch costs.

    Args:
        occupancy: with the CTA that occupies least, of those that the kernel is launched with.
        loads_in_flight: 128-bit loads per thread in the load loop before its first wait.
        load_loop_per_256: warp instructions in the loop that loads the elements, per 256 of them.
        total_per_256: warp instructions of the kernel per 256 elements.
        barriers: barriers of the CTA that a warp runs in a block.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    occupancy: float
    loads_in_flight: int
    load_loop_per_256: float
    total_per_256: float
    barriers: int


@dataclass(frozen=True, slots=True)
class StaticFigures:
    """Return figures of a kernel's machine code for one device, read without running it.

    Args:
        occupancy: with the CTA that occupies least, of those that the kernel is launched with.
        loads_in_flight: 128-bit loads per thread in the load loop before its first wait.
        load_loop: instructions in the loop that loads the elements, each counted once; 0 if no loop
            has 128-bit loads.
        code: instructions of the kernel, each counted once.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    occupancy: float
    loads_in_flight: int
    load_loop: int
    code: int


@dataclass(frozen=True, slots=True)
class Step:
    """bf16 weights before and after an optimizer step that changes 1 % of them.

    89 % of the changes are by one unit in the last place, as in training (bench/trained).
    """

    old: Bits
    new: Bits
    delta: Delta

    @classmethod
    def draw(cls, count: int) -> "Step":
        draw = np.random.default_rng(1)
        signs, exponents, rest = (draw.integers(0, end, count) for end in (2, 4, 128))
        old = (signs << 15 | (115 + exponents) << 7 | rest).astype(np.uint16)
        shares = {1: 0.89, 2: 0.045, 3: 0.014, 4: 0.014, 9: 0.0185, 40: 0.0185}
        by = draw.choice(list(shares), count, p=list(shares.values())) * draw.choice([-1, 1], count)
        new = np.where(draw.random(count) < 0.01, old + by, old).astype(np.uint16)
        return cls.of(old, new, BLOCK)

    @classmethod
    def of(cls, old: Bits, new: Bits, block: int) -> "Step":
        return cls(old, new, reference.pack(new, old.copy(), block_elements=block))


def figures_of(kernel: Kernel, run: Run, count: int, *, others: tuple[int, ...] = ()) -> Figures:
    """Return the figures of a run over `count` elements; `others` are threads of other launches."""
    loops = [loop for loop in kernel.loops() if any(map(kernel.is_wide_load, loop))]
    costs = {loop: sum(run.counts[i] for i in loop) * 256 / count for loop in loops}
    busiest = max(costs, key=costs.__getitem__, default=frozenset[int]())
    barriers = sum(n for i, n in run.counts.items() if kernel.code[i].op.startswith("BAR."))
    return Figures(
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
        spill_bytes=kernel.spill_bytes,
        occupancy=min(map(kernel.occupancy, (run.threads, *others))),
        loads_in_flight=kernel.loads_in_flight(busiest),
        load_loop_per_256=round(costs.get(busiest, 0), 1),
        total_per_256=round(sum(run.counts.values()) * 256 / count, 1),
        barriers=barriers // (run.blocks * run.threads // 32),
    )


def delta_pack(
    kernel: Kernel, step: Step, *, arrays: int = 1, is_topk: bool = False, skew: int = 0
) -> Figures:
    """Pack a block, and compare what the machine code makes of it with the reference.

    Of the blocks before it, the last 32 have not yet found where their payloads end.

    Args:
        arrays: number of arrays of the launch; only the first one is packed.
        is_topk: whether only the larger half of the changes is sent.
        skew: elements between an aligned address and the first element.
    """
    block = SMALL if "16k" in kernel.name else BLOCK
    old, new = step.old[:block], step.new[:block]
    threshold = 0
    if is_topk:
        threshold = int(np.median(reference.change_key(new, old)[new != old]))
        new = np.where(reference.sent(new, old, threshold) != 0, new, old)
        assert 0.3 < (new != old).sum() / (step.new[:block] != old).sum() < 0.7
    held = step.new[:block]
    step = Step.of(old, new, block)
    memory, count = Memory(1 << 20), block
    bits, shadow = (memory.put(np.pad(one, (skew, 0))) + 2 * skew for one in (held, step.old))
    words = on_cpu.BEFORE_WORDS + count // 2
    arena = memory.put(np.zeros(words, np.uint32))
    before = on_cpu.BEFORE
    newest = memory.put(np.full(1, before - 1, np.uint64))
    entries = memory.put(np.zeros(1, np.uint64))
    ends = memory.put(on_cpu.ends_of(1, before=before)) + 8 * before
    base = np.array(reference.digest(step.old, seed=SEED), np.uint64)
    digest = memory.put(base)
    params = on_cpu.PackParams(
        bits=box_of(bits, held),
        shadow=box_of(shadow, step.old),
        width=16,
        count=count,
        block_elements=block,
        threshold=memory.put(np.full(1, threshold, np.uint32)) if is_topk else 0,
        arena=arena,
        arena_words=words,
        newest=newest,
        first_block=before,
        entries=entries,
        offsets=ends,
        digest=digest,
        seed=SEED,
    )
    if "flat" in kernel.name:
        params = on_cpu.flat_params([params] * arrays)
    run = Run(kernel, memory, bytes(params), blocks=1, threads=block // ELEMENTS_OF_THREAD)
    size = len(step.delta.payload)
    start = on_cpu.BEFORE_WORDS
    assert memory.view(newest, np.uint64, 1)[0] == before
    assert memory.view(ends, np.uint64, 2)[1] == start + size
    assert memory.view(entries, np.uint64, 1).tolist() == step.delta.entries
    assert memory.view(arena + 4 * start, np.uint32, size).tolist() == step.delta.payload
    assert np.array_equal(memory.view(shadow, np.uint16, count), step.new)
    sums = memory.view(digest, np.uint64, 2)
    assert tuple(sums.tolist()) == reference.digest(step.new, seed=SEED)
    return figures_of(kernel, run, count)


def delta_apply(kernel: Kernel, step: Step, *, arrays: int = 1) -> Figures:
    """Apply a block, the first one of `arrays` arrays."""
    memory, count = Memory(1 << 20), step.new.size
    weights = memory.put(step.old)
    bad_block = memory.put(np.full(1, MASK64, np.uint64))
    digest = memory.put(np.array(reference.digest(step.old), np.uint64))
    array = on_cpu.ApplyArray(
        entries=memory.put(np.array(step.delta.entries, np.uint64)),
        offsets=memory.put(np.zeros(1, np.uint64)),
        payload=memory.put(np.array(step.delta.payload, np.uint32)),
        payload_words=len(step.delta.payload),
        weights=box_of(weights, step.old),
        width=16,
        count=count,
        digest=digest,
    )
    params = on_cpu.apply_params(
        [array] * arrays, block_elements=BLOCK, bad_block=bad_block, is_undo=False
    )
    threads, small = (threads_of("delta_apply", block) for block in (BLOCK, SMALL))
    run = Run(kernel, memory, bytes(params), blocks=1, threads=threads)
    assert memory.view(bad_block, np.uint64, 1)[0] == MASK64
    assert np.array_equal(memory.view(weights, np.uint16, count), step.new)
    if "digest" in kernel.name:
        sums = memory.view(digest, np.uint64, 2)
        assert tuple(sums.tolist()) == reference.digest(step.new)
    return figures_of(kernel, run, count, others=(small,))


def topk_unpack(kernel: Kernel, step: Step) -> Figures:
    """List the changes of a block."""
    memory, count = Memory(1 << 20), step.new.size
    positions, values = reference.topk_unpack(step.delta, step.old)
    changed = len(positions)
    bad_block = memory.put(np.full(1, MASK64, np.uint64))
    found = [memory.put(np.zeros(changed, dtype)) for dtype in (np.int64, np.uint16)]
    params = on_cpu.UnpackParams(
        entries=memory.put(np.array(step.delta.entries, np.uint64)),
        offsets=memory.put(np.zeros(1, np.uint64)),
        first_outputs=memory.put(np.zeros(1, np.uint64)),
        payload=memory.put(np.array(step.delta.payload, np.uint32)),
        payload_words=len(step.delta.payload),
        base=box_of(memory.put(step.old), step.old),
        width=16,
        count=count,
        block_elements=BLOCK,
        positions=found[0],
        values=found[1],
        output_count=changed,
        bad_block=bad_block,
    )
    threads, small = (threads_of("topk_unpack", block) for block in (BLOCK, SMALL))
    run = Run(kernel, memory, bytes(params), blocks=1, threads=threads)
    assert memory.view(bad_block, np.uint64, 1)[0] == MASK64
    assert memory.view(found[0], np.int64, changed).tolist() == positions
    assert memory.view(found[1], np.uint16, changed).tolist() == values
    return figures_of(kernel, run, count, others=(small,))


def digest(kernel: Kernel, step: Step) -> Figures:
    """Digest the new weights."""
    memory, count = Memory(1 << 20), step.new.size
    new, sums = memory.put(step.new), memory.put(np.zeros(2, np.uint64))
    params = on_cpu.DigestParams(
        bits=box_of(new, step.new), width=16, count=count, seed=SEED, sums=sums
    )
    run = Run(kernel, memory, bytes(params), blocks=1, threads=256)
    assert tuple(memory.view(sums, np.uint64, 2).tolist()) == reference.digest(step.new, seed=SEED)
    return figures_of(kernel, run, count)


def topk_histogram(kernel: Kernel, step: Step) -> Figures:
    """Count the keys of the changes."""
    memory, count = Memory(1 << 21), step.new.size
    histogram = memory.put(np.zeros(on_cpu.BINS, np.uint64))
    params = on_cpu.HistogramParams(
        bits=box_of(memory.put(step.new), step.new),
        shadow=box_of(memory.put(step.old), step.old),
        count=count,
        histogram=histogram,
    )
    run = Run(kernel, memory, bytes(params), blocks=1, threads=512)
    assert memory.view(histogram, np.uint64, on_cpu.BINS).sum() == (step.new != step.old).sum()
    return figures_of(kernel, run, count)


# The source; the kernel, and after a comma what is special about the run; and how it is run.
KERNELS: Final[tuple[tuple[str, str, Callable[[Kernel, Step], Figures]], ...]] = (
    ("delta_pack", "delta_pack_kernel", delta_pack),
    ("delta_pack", "delta_pack_16k_kernel", delta_pack),
    ("delta_pack", "delta_pack_16k_kernel, unaligned", partial(delta_pack, skew=1)),
    ("delta_pack", "delta_pack_flat_16k_kernel", delta_pack),
    ("delta_pack", "delta_pack_flat_64k_kernel", delta_pack),
    (
        "delta_pack",
        "delta_pack_flat_64k_kernel, most arrays",
        partial(delta_pack, arrays=on_cpu.FLAT_ARRAYS),
    ),
    ("delta_pack", "delta_pack_flat_64k_kernel, top-k", partial(delta_pack, is_topk=True)),
    ("delta_apply", "delta_apply_kernel", delta_apply),
    (
        "delta_apply",
        "delta_apply_kernel, most arrays",
        partial(delta_apply, arrays=on_cpu.APPLY_ARRAYS),
    ),
    ("delta_apply", "delta_apply_digest_kernel", delta_apply),
    ("digest", "digest_kernel", digest),
    ("topk_pack", "topk_histogram_kernel", topk_histogram),
    ("topk_unpack", "topk_unpack_kernel", topk_unpack),
)


# The source of each kernel, and the threads of the CTAs that it is launched with.
LAUNCHES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "delta_pack_kernel": ("delta_pack", (512,)),
    "delta_pack_16k_kernel": ("delta_pack", (128,)),
    "delta_pack_flat_16k_kernel": ("delta_pack", (128,)),
    "delta_pack_flat_64k_kernel": ("delta_pack", (512,)),
    "delta_apply_kernel": ("delta_apply", (256, 128)),
    "delta_apply_digest_kernel": ("delta_apply", (256, 128)),
    "digest_kernel": ("digest", (256,)),
    "topk_histogram_kernel": ("topk_pack", (512,)),
    "topk_unpack_kernel": ("topk_unpack", (256, 128)),
}
PACK: Final = "delta_pack_flat_64k_kernel"


def count(name: str, into: Path, architecture: int) -> StaticFigures:
    """Compile a kernel for a device, and count its instructions."""
    source, threads = LAUNCHES[name]
    kernel = compiled(ROOT / "kernels" / f"{source}.cu", into, architecture)[name]
    loads = {loop: sum(map(kernel.is_wide_load, loop)) for loop in kernel.loops()}
    # Of nested loops the innermost one.
    loop = max(loads, key=lambda one: (loads[one], -len(one)), default=frozenset[int]())
    has_loads = loads.get(loop, 0) > 0
    return StaticFigures(
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
        spill_bytes=kernel.spill_bytes,
        occupancy=min(map(kernel.occupancy, threads)),
        loads_in_flight=kernel.loads_in_flight(loop) if has_loads else 0,
        load_loop=len(loop) if has_loads else 0,
        code=len(kernel.code),
    )


def estimate(found: Figures, static: dict[int, StaticFigures]) -> dict[int, tuple[float, float]]:
    """Estimate load_loop_per_256 and total_per_256 of each device from the run on sm_90.

    Both are taken to be in proportion to the instructions of the kernel, the first also to those of
    its load loop if they grow more: compilers move rare parts of a loop out of it.
    """
    ran, estimates = static[RUN], {}
    for architecture, one in static.items():
        code = one.code / ran.code
        loop = max(code, one.load_loop / ran.load_loop)
        estimates[architecture] = (
            round(found.load_loop_per_256 * loop, 1),
            round(found.total_per_256 * code, 1),
        )
    return estimates


def measure(name: str, into: Path, step: Step) -> Figures:
    """Compile the kernel of a row, and run it."""
    source, _, run = next(one for one in KERNELS if one[1] == name)
    kernel, _, _ = name.partition(",")
    return run(compiled(ROOT / "kernels" / f"{source}.cu", into, RUN)[kernel], step)


def committed() -> dict[str, Any]:
    """Return the figures of the file."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def main() -> None:
    """Write the file."""
    step = Step.draw(BLOCK)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: asdict(measure(name, Path(folder), step)) for _, name, _ in KERNELS}
        for architecture in ARCHITECTURES:
            for name in LAUNCHES:
                static = asdict(count(name, Path(folder), architecture))
                found[f"sm_{architecture} {name}"] = static
    found = {"nvcc": nvcc_version(), **found}
    lines = [f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
