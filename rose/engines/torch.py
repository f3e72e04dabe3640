"""Gates inside a torch module: the borrower's step becomes segments of a few layers."""

import threading
from collections.abc import Callable

import torch
from torch import nn

from rose.errors import InvalidArgument
from rose.executor import RolloutLane


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the longest `ModuleList` of `model`: its decoder layers.

    Raises:
        InvalidArgument: the model has no list of layers.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise InvalidArgument(
            f"{type(model).__name__} has no ModuleList of layers to gate: "
            "call rollout.gate() yourself at the borders of its segments"
        )
    return max(lists, key=len)


def gate_layers(rollout: RolloutLane, model: nn.Module, *, every: int) -> Callable[[], None]:
    """Put a gate in front of every `every`-th decoder layer of `model`.

    The gate acts only in the thread that is inside a `Quantum` of `rollout`: the same module may
    serve `generate` elsewhere. Works for eager modules; hooks do not fire when a CUDA graph is
    replayed.

    Args:
        rollout: the lane whose quantum the layers run under.
        model: the module whose layers are gated.
        every: layers in one segment, > 0.

    Returns:
        A function that takes the gates out again.

    Raises:
        InvalidArgument: `every` is not positive, or the model has no list of layers.
    """
    if every <= 0:
        raise InvalidArgument(f"a segment of {every} layers is not possible: every must be > 0")

    def gate(_module: nn.Module, _inputs: object) -> None:
        if rollout.step_thread == threading.get_ident():
            rollout.gate()

    layers = decoder_layers(model)
    handles = [layers[i].register_forward_pre_hook(gate) for i in range(0, len(layers), every)]

    def take_out() -> None:
        for handle in handles:
            handle.remove()

    return take_out


def run_on_cores(count: int) -> None:
    """Let an operator use `count` threads: as many as the device of a CPU has cores."""
    torch.set_num_threads(count)
