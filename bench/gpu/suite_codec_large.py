"""Pack and apply at two and at 7.6 billion elements: a whole model's weights on one GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.report import Report
from bench.gpu.suite_codec import (
    ELEMENT_BYTES,
    PACK_BYTES,
    Packing,
    applied,
    floor_ms,
    share_of_copy,
)
from bench.gpu.timing import copy_gb_s, event_timed, fresh_seed, median_of, need_free
from bench.gpu.weights import Versions, arena_words_of, two_versions
from bench.rows import Bar
from rose.errors import check

COUNTS: Final = {"2b": 2_000_000_000, "7p6b": 7_600_000_000}
# Both versions, the shadow, the arena, a byte per compared element, and a chunk of random numbers.
VERSIONS: Final = 3
CHUNK_BYTES: Final = 3 << 30
ROUNDS: Final = 9
# Shares of the copy bandwidth of the same card: a time would be below the floor of some cards.
BARS: Final = {
    "pack_gap_7p6b_share_of_copy": Bar(at_least=0.75),
    "apply_gap_7p6b_share_of_copy": Bar(at_least=0.6),
}
# Unit of DRAM traffic, in elements. An apply reads and writes each sector that has a change.
SECTOR: Final = 16

ROWS: Final = (
    *(f"pack_gap_{size}_ms" for size in COUNTS),
    *(f"pack_gap_{size}_share_of_copy" for size in COUNTS),
    *(f"apply_gap_{size}_ms" for size in COUNTS),
    *(f"apply_gap_{size}_share_of_copy" for size in COUNTS),
)


def need_bytes(count: int) -> int:
    return VERSIONS * ELEMENT_BYTES * count + 4 * arena_words_of(count) + count + CHUNK_BYTES


def changed_sectors(versions: Versions) -> int:
    changed = (versions.new != versions.old).view(-1, SECTOR)
    return int(changed.any(1).sum().item())


@contextmanager
def versions_of(size: str) -> Iterator[Versions]:
    import torch

    need_free(need_bytes(COUNTS[size]))
    yield two_versions(COUNTS[size], seed=fresh_seed(f"codec, {size}"))
    torch.cuda.empty_cache()


def one_size(report: Report, cuda: Any, size: str, gb_s: float) -> None:
    import torch

    names = [f"{row}_{size}_ms" for row in ("pack_gap", "apply_gap")]
    shares = [f"{row}_{size}_share_of_copy" for row in ("pack_gap", "apply_gap")]
    with report.rows(*names, *shares), versions_of(size) as versions:
        packing = Packing(cuda, versions)
        packed = packing.checked()
        ms = median_of(packing.timed(), rounds=ROUNDS)
        moved_bytes = PACK_BYTES * versions.count
        report.add(names[0], ms, "ms", peer=floor_ms(moved_bytes, gb_s))
        share = share_of_copy(moved_bytes, ms, gb_s)
        report.add(shares[0], share, "ratio", bar=BARS.get(shares[0]))
        # The shadow has the result of the delta, so it serves as the receiver's weights.
        weights = packing.shadow

        def undo() -> None:
            applied(cuda, packed, weights, undo=True)

        def apply() -> None:
            applied(cuda, packed, weights)

        ms = median_of(event_timed(apply, before=undo), rounds=ROUNDS)
        report.add(names[1], ms, "ms")
        moved_bytes = 2 * ELEMENT_BYTES * SECTOR * changed_sectors(versions)
        share = share_of_copy(moved_bytes, ms, gb_s)
        report.add(shares[1], share, "ratio", bar=BARS.get(shares[1]))
        check(torch.equal(weights, versions.new), "apply did not make the new weights")
        undo()
        check(torch.equal(weights, versions.old), "undo did not restore the old weights")


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        from rose.kernels.embedded import EmbeddedCodec

        torch.cuda.init()
        gb_s = copy_gb_s()
        cuda = EmbeddedCodec(0)
        for size in COUNTS:
            one_size(report, cuda, size, gb_s)
            torch.cuda.empty_cache()
