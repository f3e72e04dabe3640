"""Passes the device from the worker, which opens it, to the scheduler, which vLLM builds later.

vLLM gives both the same `VllmConfig`, and they share no other object. Both must be rose's classes:
rose's block ids do not fit vLLM's own tensors, and vLLM's block ids do not fit rose's tensors. A
wrong pair would mix the KV of requests.
"""

from typing import Any, Final, TypeVar

from rose.errors import Unavailable

_NAME: Final = "_rose_side"

Side = TypeVar("Side")


def join(config: Any, side: object, *, scheduler: type) -> None:
    """Store `side` in `config`, where `joined` finds it.

    Args:
        config: vLLM's `VllmConfig`.
        side: device and lane that worker and scheduler share.
        scheduler: scheduler class that this worker needs.

    Raises:
        Unavailable: `config` names another scheduler class.
    """
    named = config.scheduler_config.get_scheduler_cls()
    if named is not scheduler:
        raise Unavailable(
            f"rose's worker needs rose's scheduler {scheduler.__name__}, got {named.__name__}: "
            "start the server with `rose vllm serve` or `rose vllm rollout`"
        )
    object.__setattr__(config, _NAME, side)


def joined(config: Any, kind: type[Side]) -> Side:
    """Return the side that the worker stored in `config`.

    Args:
        config: vLLM's `VllmConfig`.
        kind: class of the side that this scheduler needs.

    Raises:
        Unavailable: the worker stored no side of this class.
    """
    side = getattr(config, _NAME, None)
    if not isinstance(side, kind):
        raise Unavailable(
            "rose's scheduler needs rose's worker: start the server with `rose vllm serve` or "
            "`rose vllm rollout`"
        )
    return side
