"""Gain of the embedded kernels over their Triton twins, which replace missing ones."""

from typing import Final

from bench.gpu.report import Report
from bench.gpu.suite_codec import COUNT, Packing, applied, report_pairs
from bench.gpu.timing import event_timed, fresh_seed, need_free
from bench.gpu.weights import two_versions

ROWS: Final = ("triton_over_cuda_pack", "triton_over_cuda_apply", "triton_over_cuda_digest")


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        from rose.kernels.embedded import EmbeddedCodec
        from rose.kernels.triton_codec import TritonCodec

        torch.cuda.init()
        need_free(16 * COUNT)
        cuda, triton = EmbeddedCodec(0), TritonCodec()
        versions = two_versions(COUNT, seed=fresh_seed("triton"))
        packed = Packing(cuda, versions).checked()
        weights = versions.new.clone()

        def back() -> None:
            applied(cuda, packed, weights, undo=True)

        with report.rows("triton_over_cuda_digest"):
            report_pairs(
                report,
                "triton_over_cuda_digest",
                event_timed(lambda: triton.digest(versions.new)),
                event_timed(lambda: cuda.digest(versions.new)),
                "CUDA",
            )
        with report.rows("triton_over_cuda_pack"):
            subject = Packing(triton, versions, has_arena=False)
            peer = Packing(cuda, versions)
            subject.checked()
            report_pairs(report, "triton_over_cuda_pack", subject.timed(), peer.timed(), "CUDA")
        with report.rows("triton_over_cuda_apply"):
            report_pairs(
                report,
                "triton_over_cuda_apply",
                event_timed(lambda: applied(triton, packed, weights), before=back),
                event_timed(lambda: applied(cuda, packed, weights), before=back),
                "CUDA",
            )
