"""Gates inside a torch module: the borrower's step becomes segments of a few layers."""

import threading
from collections.abc import Callable
from typing import Final, Protocol

import torch
from torch import nn

from rose.errors import InvalidArgument
from rose.memory import DeviceArray, KVArray

HALF_LAYER: Final = 0.5


class StepGate(Protocol):
    """What stops a borrower's step between its segments: a `RolloutLane`, or a rival of it."""

    @property
    def step_thread(self) -> int:
        """The thread that is in a step; 0 outside."""
        ...

    def gate(self) -> None:
        """End a segment, and wait until the next may start."""
        ...


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the longest `ModuleList` that lies in no other: the decoder layers of `model`.

    Raises:
        InvalidArgument: the model has no list of layers.
    """
    named = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.ModuleList)]
    # The experts of a layer are a list too, and may be more than there are layers.
    lists = [one for name, one in named if not any(name.startswith(f"{up}.") for up, _ in named)]
    if not lists:
        raise InvalidArgument(
            f"{type(model).__name__} has no ModuleList of layers to gate: "
            "call rollout.gate() yourself at the borders of its segments"
        )
    return max(lists, key=len)


def _gated_modules(model: nn.Module, every: float) -> list[nn.Module]:
    layers = decoder_layers(model)
    if every == HALF_LAYER:
        halves = [module for layer in layers for module in (layer, getattr(layer, "mlp", None))]
        if any(module is None for module in halves):
            raise InvalidArgument(
                f"the layers of {type(model).__name__} have no 'mlp' to gate: use every=1"
            )
        return [module for module in halves if module is not None]
    if every < 1 or every != int(every):
        raise InvalidArgument(
            f"a segment of {every:g} layers is not possible: every must be 0.5 or a whole number"
        )
    return [layers[i] for i in range(0, len(layers), int(every))]


def gate_layers(rollout: StepGate, model: nn.Module, *, every: float) -> Callable[[], None]:
    """Put gates between the decoder layers of `model`.

    A gate acts only in the thread that is inside a `Quantum` of `rollout`: the same module may
    serve `generate` elsewhere. Works for eager modules; hooks do not fire when a CUDA graph is
    replayed. On a GPU the forward pass must not wait for its stream (`.item()`, `nonzero`): behind
    a closed gate it would wait with serving, and no abort would reach it.

    Args:
        rollout: the lane whose quantum the layers run under.
        model: the module whose layers are gated.
        every: layers in one segment, a whole number; 0.5 puts a second gate in front of each
            layer's `mlp`.

    Returns:
        A function that takes the gates out again.

    Raises:
        InvalidArgument: another `every`, or a model without such layers.
    """

    def gate(_module: nn.Module, _inputs: object) -> None:
        if rollout.step_thread == threading.get_ident():
            rollout.gate()

    handles = [module.register_forward_pre_hook(gate) for module in _gated_modules(model, every)]

    def take_out() -> None:
        for handle in handles:
            handle.remove()

    return take_out


def as_tensor(array: KVArray, device: torch.device) -> torch.Tensor:
    """Return a tensor over the same bytes; `device` is where they are."""
    if isinstance(array, DeviceArray):
        return torch.as_tensor(array, device=device)
    return torch.from_numpy(array)


def stream_of(handle: int, device: torch.device) -> torch.cuda.Stream:
    """Return a stream of rose's for torch.

    Never one of torch's own pools: they come round again after 32, and serving would share a stream
    with a borrower that is stopped at a gate.
    """
    return torch.cuda.ExternalStream(handle, device=device)


def run_on_cores(count: int) -> None:
    """Let an operator use `count` threads: as many as the device of a CPU has cores."""
    torch.set_num_threads(count)
