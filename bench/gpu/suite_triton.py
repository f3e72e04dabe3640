"""Gain of the embedded kernels over their Triton twins, which replace missing ones."""

from typing import Final

from bench.gpu.report import Report
from bench.gpu.suite_codec import BLOCK_ELEMENTS, COUNT, Packing, applied, report_pairs
from bench.gpu.timing import event_timed, fresh_seed, need_free
from bench.gpu.weights import two_versions
from rose.errors import check

ROWS: Final = ("triton_over_cuda_pack", "triton_over_cuda_apply", "triton_over_cuda_digest")


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        from rose.kernels.delta_apply import delta_apply
        from rose.kernels.delta_pack import delta_pack
        from rose.kernels.deltas import AGE_LIMIT
        from rose.kernels.digest import digest
        from rose.kernels.embedded import EmbeddedCodec

        torch.cuda.init()
        need_free(16 * COUNT)
        cuda = EmbeddedCodec(0)
        versions = two_versions(COUNT, seed=fresh_seed("triton"))
        packed = Packing(cuda, versions).checked()
        weights = versions.new.clone()

        def back() -> None:
            applied(cuda, packed, weights, undo=True)

        def triton_apply() -> None:
            table = packed.entries, packed.offsets, packed.arena
            delta_apply(weights, *table, block_elements=BLOCK_ELEMENTS, undo=False)

        def triton_pack() -> None:
            made = delta_pack(
                versions.new,
                shadow,
                block_elements=BLOCK_ELEMENTS,
                threshold=0,
                ages=None,
                age_limit=AGE_LIMIT,
            )
            digest(made.shadow)
            shadow.copy_(made.shadow)

        with report.rows("triton_over_cuda_digest"):
            report_pairs(
                report,
                "triton_over_cuda_digest",
                event_timed(lambda: digest(versions.new)),
                event_timed(lambda: cuda.digests([versions.new])),
                "CUDA",
            )
        with report.rows("triton_over_cuda_pack"):
            shadow = versions.old.clone()
            triton_pack()
            check(torch.equal(shadow, versions.new), "the shadow is not the new weights")
            subject = event_timed(triton_pack, before=lambda: shadow.copy_(versions.old))
            peer = Packing(cuda, versions).timed()
            report_pairs(report, "triton_over_cuda_pack", subject, peer, "CUDA")
        with report.rows("triton_over_cuda_apply"):
            report_pairs(
                report,
                "triton_over_cuda_apply",
                event_timed(triton_apply, before=back),
                event_timed(lambda: applied(cuda, packed, weights), before=back),
                "CUDA",
            )
