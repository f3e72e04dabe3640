"""Joins the worker, which lays out the memory, with the scheduler that vLLM builds after it.

vLLM gives both the same `VllmConfig`, and no other object. Scheduler and worker must be rose's
together: block ids of rose's allocator in vLLM's own tensors, or the reverse, would mix requests.
"""

from typing import Any, Final, TypeVar

from rose.errors import Unavailable

_NAME: Final = "_rose_side"

Side = TypeVar("Side")


def join(config: Any, side: object, *, scheduler: type) -> None:
    """Leave `side` for the scheduler.

    Args:
        config: vLLM's `VllmConfig`.
        side: the device side that worker and scheduler share.
        scheduler: the scheduler class that must go with it.

    Raises:
        Unavailable: vLLM will build another scheduler.
    """
    named = config.scheduler_config.get_scheduler_cls()
    if named is not scheduler:
        raise Unavailable(
            f"rose's worker needs rose's scheduler {scheduler.__name__}, and this server has "
            f"{named.__name__}: start it with `rose vllm serve` or `rose vllm rollout`"
        )
    object.__setattr__(config, _NAME, side)


def joined(config: Any, kind: type[Side]) -> Side:
    """Return what the worker left.

    Raises:
        Unavailable: the worker is not rose's.
    """
    side = getattr(config, _NAME, None)
    if not isinstance(side, kind):
        raise Unavailable(
            "rose's scheduler needs rose's worker: start the server with `rose vllm serve` or "
            "`rose vllm rollout`"
        )
    return side
