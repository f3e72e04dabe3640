"""Gates inside a torch module: the borrower's step becomes segments of a few layers."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rose._core import CudaDevice, CudaGraph
from rose.errors import InvalidArgument
from rose.executor import RolloutLane
from rose.memory import DeviceArray, KVArray

HALF_LAYER: Final = 0.5


class StepGate(Protocol):
    """Stops a borrower's step between its segments: a `RolloutLane`, or another scheme's lane."""

    @property
    def step_thread(self) -> int:
        """Id of the thread inside a step; 0 while there is none."""
        ...

    def gate(self) -> None:
        """End a segment, and wait until the next may start."""
        ...


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the decoder layers of `model`: its longest `ModuleList` that is not inside another.

    Raises:
        InvalidArgument: the model has no list of layers.
    """
    named = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.ModuleList)]
    # The experts of a layer are a list too, and may outnumber the layers.
    lists = [one for name, one in named if not any(name.startswith(f"{up}.") for up, _ in named)]
    if not lists:
        raise InvalidArgument(
            f"{type(model).__name__} has no ModuleList of layers to gate: "
            "call rollout.gate() yourself between its segments"
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
        raise InvalidArgument(f"every must be 0.5 or a whole number, at least 1, got {every:g}")
    return [layers[i] for i in range(0, len(layers), int(every))]


def gate_layers(rollout: StepGate, model: nn.Module, *, every: float) -> Callable[[], None]:
    """Put gates between the decoder layers of `model`.

    A gate acts only in the thread that runs a `Quantum` of `rollout`, so other threads may run the
    same module, for instance in `generate`. Gates work in eager modules and under `torch.compile`,
    where a gate is a graph break: compile after this call, and without `fullgraph`. Hooks do not
    fire when a CUDA graph is replayed: see `gate_graphs` and `captured_gates`. On a GPU the forward
    pass runs in `rollout.stream` and must not wait for this stream (`.item()`, `nonzero`): behind a
    closed gate the thread would wait for serving, and no abort would reach it.

    Args:
        rollout: lane whose quanta run the layers.
        model: module whose layers are gated.
        every: layers per segment, a whole number; 0.5 puts a second gate before each layer's `mlp`.

    Returns:
        A function that removes the gates.

    Raises:
        InvalidArgument: `every` is invalid, or the model has no layers to gate.
    """

    def gate(_module: nn.Module, _inputs: object) -> None:
        if rollout.step_thread == threading.get_ident():
            rollout.gate()

    handles = [
        module.register_forward_pre_hook(_uncompiled(gate))
        for module in _gated_modules(model, every)
    ]

    def take_out() -> None:
        for handle in handles:
            handle.remove()

    return take_out


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Exclude a hook from compiled code, which would call it while tracing, or not at all."""
    kept: Callable[..., None] = torch.compiler.disable(hook)
    return kept


class Replayable(Protocol):
    """A captured part of a step, such as `torch.cuda.CUDAGraph`."""

    def replay(self) -> None:
        """Queue this part on the current stream."""
        ...


def gate_graphs(rollout: RolloutLane, graphs: Sequence[Replayable]) -> Callable[[], None]:
    """Join separately captured segments to one step, with a gate before each but the first.

    An abort skips the rest: no graph is launched after the gate that raised.

    Args:
        rollout: lane whose quanta run the step; the quantum itself is the first segment's gate.
        graphs: segments in order, at least one.

    Returns:
        A function that runs the step in the current stream, which must be `rollout.stream`. The
        function raises the errors of `RolloutLane.gate`.

    Raises:
        InvalidArgument: there are no graphs.
    """
    if not graphs:
        raise InvalidArgument("graphs must contain at least one captured segment, got none")
    first, *others = graphs

    def run() -> None:
        first.replay()
        for graph in others:
            rollout.gate()
            graph.replay()

    return run


class _NoRandomNumbers(TorchDispatchMode):  # type: ignore[misc]
    """While active, refuses operators that draw random numbers in this thread."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Check an operator, then run it."""
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _has_dropout(func, args, kwargs):
            raise InvalidArgument(
                f"{func} draws random numbers, and RolloutLane.launch would repeat the same ones "
                "at every launch: draw outside the graph, after the step"
            )
        return func(*args, **kwargs)


def _has_dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return False for a call of attention, which is tagged as random, without dropout."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[at] if at < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given)
    return True


@contextmanager
def captured_gates(
    rollout: RolloutLane, model: nn.Module, *, every: float, stream: int | None = None
) -> Iterator[None]:
    """Add gates to the CUDA graph captured in this block, between the decoder layers of `model`.

    No other thread may run the model during the block. The graph must not draw random numbers: a
    launch by rose does not renew their seed and offset, as `torch.cuda.CUDAGraph.replay` does.

    Args:
        rollout: lane that will launch the graph.
        model: module whose layers are gated, as by `gate_layers`.
        every: layers per segment, as for `gate_layers`.
        stream: handle of the stream under capture; None for the lane's stream.

    Raises:
        InvalidArgument: `every` is invalid, the model has no layers to gate, or an operator in this
            block draws random numbers.
        Unavailable: the lane's gates stop the host, so a graph cannot contain them; see
            `RolloutLane.has_stream_gates`.
    """

    def add(_module: nn.Module, _inputs: object) -> None:
        rollout.capture_gate(stream)

    handles = [one.register_forward_pre_hook(add) for one in _gated_modules(model, every)]
    try:
        with _NoRandomNumbers():
            yield
    finally:
        for handle in handles:
            handle.remove()


def gated_graph(rollout: RolloutLane, captured: torch.cuda.CUDAGraph) -> CudaGraph:
    """Convert a captured torch graph, which contains gates, for `RolloutLane.launch`.

    Args:
        rollout: lane whose gates the graph contains.
        captured: graph made with `keep_graph=True`; must live as long as the result.

    Raises:
        InvalidArgument: the lane's device is a CPU.
    """
    if rollout.device is None:
        raise InvalidArgument("a lane on a CPU launches no CUDA graphs: run the module itself")
    return CudaGraph.instantiate(rollout.device, int(captured.raw_cuda_graph()))


def as_tensor(array: KVArray, device: torch.device) -> torch.Tensor:
    """Return a tensor over the same bytes, on `device`."""
    if isinstance(array, DeviceArray):
        return torch.as_tensor(array, device=device)
    return torch.from_numpy(array)


def check_device(lane: CudaDevice | None, model: torch.device) -> None:
    """Check that a model is on the GPU of its lane.

    Raises:
        InvalidArgument: the model is on another device.
    """
    if lane is None or (model.type == "cuda" and model.index in {None, lane.ordinal}):
        return
    uuid = lane.driver.facts(model.index).uuid if model.type == "cuda" else None
    raise InvalidArgument(
        f"the lane is on cuda:{lane.ordinal} (UUID {lane.facts.uuid}), and the model is on {model}"
        f"{f' (UUID {uuid})' if uuid else ''}: move the model"
    )


def stream_of(handle: int, device: torch.device) -> torch.cuda.Stream:
    """Wrap one of rose's streams for torch.

    Streams of torch's own pool would not do: torch hands out its 32 streams again and again, so
    serving could get the stream of a borrower that is stopped at a gate.
    """
    return torch.cuda.ExternalStream(handle, device=device)


def run_on_cores(count: int) -> None:
    """Let each torch operator use `count` threads, one for each core of the CPU device."""
    torch.set_num_threads(count)
