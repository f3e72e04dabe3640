"""What an engine says of itself, as numbers that were checked."""

from dataclasses import dataclass

from rose.scheduler.broker.histogram import Histogram


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading of one engine.

    Args:
        engine: "vLLM", "SGLang", or "rose" for what its executor says.
        model: what it calls its model; "" if it does not say.
        kv_used: the share of its KV pool that requests hold, of the fullest rank, 0 to 1.
        kv_tokens: that the pool holds, over all ranks; None if it does not say.
        running: requests that it works on.
        waiting: requests that it has not begun.
        preempted: requests that it put back for want of KV, since it started.
        ttft: times to the first token.
        tpot: times between tokens.
    """

    engine: str
    model: str
    kv_used: float
    kv_tokens: int | None
    running: int
    waiting: int
    preempted: float
    ttft: Histogram
    tpot: Histogram
