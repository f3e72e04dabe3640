"""Build the log and the creditor of compute certificates from one policy."""

from typing import Any

from rose._core import (
    CertificateLog,
    Clock,
    Creditor,
    HostGate,
    LatencyModel,
    ServingState,
    Watchdog,
)
from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose.slo.evidence import Shape
from rose.slo.policy import POLL_MS, RETRY_MS, SEGMENT_SHARE


def certificate_log(
    path: str, *, slo: SLO, policy: Policy, clock: Clock, **memory: Any
) -> CertificateLog:
    """Open a certificate log whose header records the targets and the policy.

    Args:
        path: log file; "": no file is written, only counts are kept.
        slo: targets of serving.
        policy: limits and evidence rules for lending.
        clock: the device's clock.
        memory: further arguments of `CertificateLog`, about the pool.

    Raises:
        InvalidArgument: the path is not UTF-8, has a zero byte, or leads to something else than a
            regular file.
        Unavailable: the file cannot be written.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"log_path must be UTF-8, got {path!r}") from error
    return CertificateLog(
        path,
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        epsilon=policy.epsilon,
        signal_ms=policy.signal_ms,
        blocking_ms=policy.blocking_ms,
        heartbeat_ttl_ms=policy.heartbeat_ttl_ms,
        max_segments=policy.max_segments,
        slowdown=slo.slowdown,
        without=policy.without_bits,
        wait_budget_ms=policy.wait_budget_ms,
        park_wait_ms=min(policy.park_wait_ms, slo.ttft_ms),
        clock=clock,
        **memory,
    )


def largest_shapes(context_tokens: int, step_tokens: int) -> tuple[Shape, Shape]:
    """Return the largest decode step and the largest prompt chunk of the next request.

    Args:
        context_tokens: largest number of KV tokens that a step reads for the request.
        step_tokens: largest number of tokens in one engine step.
    """
    context = float(context_tokens)
    return (1.0, context, 0.0), (0.0, context, float(step_tokens))


def certified_creditor(
    gate: HostGate,
    state: ServingState,
    model: LatencyModel,
    log: CertificateLog,
    *,
    policy: Policy,
    context_tokens: int,
    step_tokens: int,
    clock: Clock,
    watchdog: Watchdog | None = None,
) -> Creditor:
    """Make the creditor, which checks the steps of `largest_shapes` before it grants a quantum.

    The creditor's thread also polls `watchdog`.
    """
    largest_step, largest_chunk = largest_shapes(context_tokens, step_tokens)
    return Creditor(
        gate,
        state,
        model,
        log,
        largest_step=largest_step,
        largest_chunk=largest_chunk,
        segment_prior_ms=policy.segment_prior_ms,
        segment_share=SEGMENT_SHARE,
        poll_ms=POLL_MS,
        retry_ms=RETRY_MS,
        watchdog=watchdog,
        clock=clock,
    )
