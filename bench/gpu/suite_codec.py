"""Pack, apply, top-k and digest on half a billion elements, compared with torch."""

from collections.abc import Callable
from typing import Any, Final

from bench.gpu.report import Report
from bench.gpu.timing import (
    GB,
    copy_gb_s,
    event_timed,
    fresh_seed,
    host_timed,
    median_of,
    need_free,
)
from bench.gpu.weights import CHANGED_SHARE, Versions, arena_words_of, two_versions
from bench.paired import Pairs
from bench.rows import Peer
from rose.errors import check
from rose.units import ceil_div

COUNT: Final = 500_000_000
TOPK_COUNT: Final = 1 << 27
ELEMENT_BYTES: Final = 2
# Reads new and shadow; digest and table are small. The shadow's changed lines are written too.
PACK_BYTES: Final = 2 * ELEMENT_BYTES
BLOCK_ELEMENTS: Final = 65_536
ROUNDS: Final = 15

ROWS: Final = (
    "pack_gap_0p5b_ms",
    "pack_gap_0p5b_share_of_copy",
    "pack_over_torch",
    "apply_gap_0p5b_ms",
    "apply_over_index_copy",
    "digest_gb_s",
    "digest_share_of_copy",
    "topk_over_torch",
    "pack_model_ms",
    "pack_model_over_kernel",
    "apply_model_ms",
)
# Tensors of a model of some billion parameters.
TENSORS: Final = 300
CALLS: Final = 5


class Packing:
    """A repeatable pack by the CUDA kernels: the shadow is restored before each."""

    def __init__(self, codec: Any, versions: Versions) -> None:
        self.versions = versions
        self.shadow = versions.old.clone()
        self._codec = codec
        self._base_digests = codec.digests([self.shadow])

    def restore(self) -> None:
        self.shadow.copy_(self.versions.old)

    def once(self) -> Any:
        return self._codec.pack_blocks(
            [self.versions.new],
            [self.shadow],
            self._base_digests,
            block_elements=BLOCK_ELEMENTS,
            arena_words=arena_words_of(self.versions.count),
        )

    def checked(self) -> Any:
        """Pack once, and check that the delta has all changes."""
        import torch

        self.restore()
        packed = self.once()
        check(torch.equal(self.shadow, self.versions.new), "the shadow is not the new weights")
        words, room = int(packed.words.item()), packed.arena.numel()
        check(words <= room, f"a delta of {words} words does not fit into an arena of {room}")
        changed = int(((packed.entries >> 4) & 0xFFFFF).sum().item())
        truly = sum(
            int(torch.count_nonzero(new != old).item())
            for new, old in zip(
                self.versions.new.split(1 << 28), self.versions.old.split(1 << 28), strict=True
            )
        )
        check(changed == truly, f"the delta has {changed} changes, expected {truly}")
        return packed

    def timed(self) -> Callable[[], float]:
        return event_timed(self.once, before=self.restore)


def applied(codec: Any, packed: Any, weights: Any, *, undo: bool = False) -> Any:
    """Apply or undo a delta; return the lowest corrupt block, or -1, on the device."""
    tables = [(packed.entries, packed.offsets, packed.arena)]
    return codec.apply_blocks([weights], tables, [BLOCK_ELEMENTS], undo=undo)[0]


def share_of_copy(moved_bytes: int, ms: float, gb_s: float) -> float:
    """Return the share of the copy bandwidth that a call reaches."""
    return moved_bytes / GB / (ms * 1e-3) / gb_s


def floor_ms(moved_bytes: int, gb_s: float) -> Peer:
    return Peer(
        f"{moved_bytes / GB:.3g} GB at the copy's speed", moved_bytes / GB / gb_s * 1e3, "ms"
    )


def torch_pack(versions: Versions, shadow: Any) -> Callable[[], None]:
    """Return the torch version: compare, find, gather, and update the shadow."""

    def pack() -> None:
        positions = (versions.new != shadow).nonzero().view(-1)
        values = versions.new.index_select(0, positions)
        shadow.index_copy_(0, positions, values)

    return pack


def packs(report: Report, cuda: Any, versions: Versions, gb_s: float) -> Any:
    packing = Packing(cuda, versions)
    packed = packing.checked()
    moved_bytes = PACK_BYTES * versions.count
    with report.rows("pack_gap_0p5b_ms", "pack_gap_0p5b_share_of_copy"):
        ms = median_of(packing.timed(), rounds=ROUNDS)
        report.add("pack_gap_0p5b_ms", ms, "ms", peer=floor_ms(moved_bytes, gb_s))
        report.add("pack_gap_0p5b_share_of_copy", share_of_copy(moved_bytes, ms, gb_s), "ratio")
    with report.rows("pack_over_torch"):
        shadow = versions.old.clone()
        peer = event_timed(torch_pack(versions, shadow), before=lambda: shadow.copy_(versions.old))
        report_pairs(report, "pack_over_torch", packing.timed(), peer, "torch ne/nonzero/index")
    return packed


def report_pairs(
    report: Report,
    name: str,
    subject: Callable[[], float],
    peer: Callable[[], float],
    peer_name: str,
) -> None:
    """Measure alternately, after a warm-up round."""
    Pairs(subject, peer).round()
    pairs = Pairs(subject, peer)
    for _ in range(ROUNDS):
        pairs.round()
    paired = pairs.result()
    report.add_ratio(name, paired, peer=Peer(peer_name, paired.peer, "ms"))


def applies(report: Report, cuda: Any, versions: Versions, packed: Any) -> None:
    import torch

    weights = versions.old.clone()

    def undo() -> None:
        applied(cuda, packed, weights, undo=True)

    def apply() -> None:
        applied(cuda, packed, weights)

    with report.rows("apply_gap_0p5b_ms", "apply_over_index_copy"):
        check(int(applied(cuda, packed, weights).item()) == -1, "apply found a corrupt block")
        check(torch.equal(weights, versions.new), "apply did not make the new weights")
        ms = median_of(event_timed(apply, before=undo), rounds=ROUNDS)
        report.add("apply_gap_0p5b_ms", ms, "ms")
        positions = (versions.new != versions.old).nonzero().view(-1)
        values = versions.new.index_select(0, positions)
        other = versions.old.clone()
        peer = event_timed(lambda: other.index_copy_(0, positions, values))
        subject = event_timed(apply, before=undo)
        report_pairs(report, "apply_over_index_copy", subject, peer, "torch index_copy_")
        undo()
        check(torch.equal(weights, versions.old), "undo did not restore the old weights")


def digests(report: Report, cuda: Any, versions: Versions, gb_s: float) -> None:
    with report.rows("digest_gb_s", "digest_share_of_copy"):
        moved_bytes = ELEMENT_BYTES * versions.count
        ms = median_of(event_timed(lambda: cuda.digests([versions.new])), rounds=ROUNDS)
        report.add("digest_gb_s", moved_bytes / GB / (ms * 1e-3), "GB/s")
        report.add("digest_share_of_copy", share_of_copy(moved_bytes, ms, gb_s), "ratio")


def tensor_size(count: int) -> int:
    """Return the size of a tensor of a model, in elements: whole blocks, so all are aligned."""
    return ceil_div(ceil_div(count, TENSORS), BLOCK_ELEMENTS) * BLOCK_ELEMENTS


def models(report: Report, cuda: Any, versions: Versions) -> None:
    """The public functions on a model: from tensors to deltas in host memory, and back."""
    import torch

    from rose.transfer import delta_apply, delta_pack

    size = tensor_size(versions.count)

    def tensors(flat: Any) -> dict[int, Any]:
        return dict(enumerate(flat.split(size)))

    with report.rows("pack_model_ms", "pack_model_over_kernel", "apply_model_ms"):
        new, shadow, weights = versions.new, versions.old.clone(), versions.old.clone()
        deltas = delta_pack(tensors(new), tensors(shadow))
        check(torch.equal(shadow, new), "the shadow is not the new weights")
        known = {name: one.base_digest for name, one in deltas.items()}

        def restore() -> None:
            shadow.copy_(versions.old)
            torch.cuda.synchronize()

        def pack() -> None:
            delta_pack(tensors(new), tensors(shadow), base_digest=known)

        pack_ms = median_of(host_timed(pack, before=restore), rounds=CALLS)
        report.add("pack_model_ms", pack_ms, "ms")
        kernel_ms = median_of(Packing(cuda, versions).timed(), rounds=CALLS)
        report.add("pack_model_over_kernel", pack_ms / kernel_ms, "ratio")

        def undo() -> None:
            delta_apply(tensors(weights), deltas, undo=True)
            torch.cuda.synchronize()

        delta_apply(tensors(weights), deltas)
        check(torch.equal(weights, new), "apply did not make the new weights")
        apply_ms = median_of(
            host_timed(lambda: delta_apply(tensors(weights), deltas), before=undo), rounds=CALLS
        )
        report.add("apply_model_ms", apply_ms, "ms")


def topk(report: Report, cuda: Any) -> None:
    """Threshold and pack of the largest tenth of the changes, against torch.topk over all."""
    import torch

    with report.rows("topk_over_torch"):
        versions = two_versions(TOPK_COUNT, seed=fresh_seed("top-k"))
        budget = int(TOPK_COUNT * CHANGED_SHARE / 10)
        shadow = versions.old.clone()
        base_digests = cuda.digests([shadow])

        def restore() -> None:
            shadow.copy_(versions.old)

        def subject() -> None:
            threshold = cuda.find_threshold(versions.new, shadow, budget=budget)
            cuda.pack_blocks(
                [versions.new],
                [shadow],
                base_digests,
                block_elements=BLOCK_ELEMENTS,
                arena_words=arena_words_of(TOPK_COUNT),
                threshold=threshold,
            )

        def peer() -> None:
            new, old = (one.view(torch.bfloat16) for one in (versions.new, shadow))
            size = (new.float() - old.float()).abs()
            positions = torch.topk(size, budget, sorted=False).indices
            values = versions.new.index_select(0, positions)
            shadow.index_copy_(0, positions, values)

        report_pairs(
            report,
            "topk_over_torch",
            event_timed(subject, before=restore),
            event_timed(peer, before=restore),
            "torch.topk, gather, index_copy_",
        )


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        from rose.kernels.embedded import EmbeddedCodec

        torch.cuda.init()
        need_free(16 * COUNT)
        gb_s = copy_gb_s()
        cuda = EmbeddedCodec(0)
        versions = two_versions(COUNT, seed=fresh_seed("codec"))
        packed = packs(report, cuda, versions, gb_s)
        applies(report, cuda, versions, packed)
        digests(report, cuda, versions, gb_s)
        del packed
        models(report, cuda, versions)
        del versions
        torch.cuda.empty_cache()
        topk(report, cuda)
