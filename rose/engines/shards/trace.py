"""The shard map of an engine, found by running its own loader on tensors without elements."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from rose.engines.shards.look import Placed, boxes_of
from rose.engines.shards.slots import Slots
from rose.engines.shards.storages import parameters_of, storages_of
from rose.engines.shards.tracer import Tracer
from rose.engines.shards.writes import Write, Writes
from rose.errors import RoseError
from rose.transfer.plan import LocalView, Piece, ShardMap, TensorSpec, joined

# A model's own loader, such as `load_weights` in vLLM and SGLang.
Loader: TypeAlias = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]


@dataclass(frozen=True, slots=True)
class LoaderTrace:
    """The places at which one rank's loader stores the tensors of a checkpoint.

    Args:
        shards: shard map; it omits tensors of which the rank has no part.
        ends: for each computed tensor, the parameters that depend on it, as far as the trace could
            follow the tensor.
        skipped: tensors that the loader accepted and stored nowhere, such as layers of other
            stages.
        storages: number of elements of every parameter and buffer, by rank and name.
        excused: parameters that need not be described completely by pieces: buffers, parameters
            that depend on computed tensors, and parameters that the loader partly fills with a
            constant, such as padding rows.
    """

    shards: ShardMap
    ends: Mapping[str, tuple[str, ...]]
    skipped: tuple[str, ...]
    storages: Mapping[tuple[int, str], int]
    excused: frozenset[str]


def trace_loader(
    model: nn.Module, load_weights: Loader, tensors: Iterable[TensorSpec], *, rank: int = 0
) -> LoaderTrace:
    """Find where a model's own loader puts each element of a checkpoint.

    The loader runs with tensors that have a shape and no elements. Copies into parameters and
    buffers are recorded and not executed, so the model keeps its bits and may serve meanwhile. The
    model may be on any device, including "meta". Attributes that a loader sets on modules are not
    undone.

    Tensors that are only cut, permuted and copied get exact pieces. All others are *computed*: the
    loader converts their dtype, applies an operation that is not a view, or reads their elements.

    Args:
        model: model whose parameters are written.
        load_weights: loader of (name, tensor) pairs; runs once, and once more for each tensor whose
            elements it tries to read.
        tensors: tensors of the checkpoint.
        rank: rank of the pieces.

    Raises:
        InvalidArgument: a tensor's shape differs from that of its target.
    """
    specs = {spec.name: spec for spec in tensors}
    parameters = parameters_of(model)
    writes = _Follower(model, load_weights, parameters).follow(specs)
    pieces = [(write, placed) for write in writes.all() for placed in _boxes(specs, writes, write)]
    writes.settle()
    held = dict.fromkeys(
        _piece(write, placed, rank)
        for write, placed in pieces
        if writes.computed.keys().isdisjoint(write.names)
    )
    reached = {name for write in writes.all() for name in write.names} | writes.computed.keys()
    return LoaderTrace(
        ShardMap(
            {name: spec for name, spec in specs.items() if name in reached},
            tuple(held),
            {name: writes.computed[name] for name in specs if name in writes.computed},
        ),
        {name: _ends(writes, name) for name in specs if name in writes.computed},
        tuple(name for name in specs if name not in reached),
        storages_of(parameters, rank=rank),
        frozenset(_excused(writes, parameters)),
    )


def joined_traces(traces: Iterable[LoaderTrace]) -> LoaderTrace:
    """Merge the traces of all ranks of a replica, as `joined` does with maps.

    Raises:
        InvalidArgument: two ranks disagree on a tensor's shape or dtype.
    """
    traces = tuple(traces)
    shards = joined(one.shards for one in traces)
    ends: dict[str, dict[str, None]] = {name: {} for name in shards.computed}
    for one in traces:
        for name, parameters in one.ends.items():
            ends[name].update(dict.fromkeys(parameters))
        for piece in one.shards.pieces:  # copied on this rank, computed on another
            if piece.tensor in ends:
                ends[piece.tensor][piece.view.parameter] = None
    held = frozenset(name for parameters in ends.values() for name in parameters)
    return LoaderTrace(
        shards,
        {name: tuple(parameters) for name, parameters in ends.items()},
        tuple(name for name in _all_skipped(traces) if name not in shards.tensors),
        {place: size for one in traces for place, size in one.storages.items()},
        held.union(*(one.excused for one in traces)),
    )


class _Follower:
    """Runs a loader until every tensor is followed as far as possible."""

    def __init__(
        self, model: nn.Module, load_weights: Loader, parameters: Mapping[str, torch.Tensor]
    ) -> None:
        self._model = model
        self._load_weights = load_weights
        self._parameters = parameters

    def follow(self, specs: Mapping[str, TensorSpec]) -> Writes:
        """Return all writes; tensors at which the loader stopped become computed ones."""
        stopped_at: dict[str, str] = {}
        tracer = Tracer(self._parameters)
        todo = list(specs)
        while True:
            feed = _Feed([specs[name] for name in todo], tracer)
            reasons = self._run(tracer, feed)
            stopped_at |= reasons
            if not reasons:
                tracer.writes.computed |= stopped_at
                return tracer.writes
            if reasons.keys() == {feed.last}:
                todo = todo[todo.index(feed.last) + 1 :]
            else:  # the loader reads ahead, so it is unknown which other tensors it has placed
                todo = [name for name in specs if name not in stopped_at]
                tracer = Tracer(self._parameters)

    def _run(self, tracer: Tracer, feed: "_Feed") -> dict[str, str]:
        """Run the loader; return the tensors at which it stopped, with reasons."""
        slots = Slots(self._model)
        tracer.raised.clear()
        try:
            with torch.no_grad(), tracer:
                self._load_weights(feed)
        except (RoseError, RuntimeError, TypeError, ValueError) as error:
            if tracer.raised:
                computed = tracer.writes.computed
                return {name: computed[name] for name in tracer.raised}
            # Access to elements from Python (`numpy`, `tolist` and others) is not dispatched. On a
            # tensor without elements such access raises a RuntimeError or a TypeError.
            if not feed.last or not isinstance(error, (RuntimeError, TypeError)):
                raise
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return {feed.last: tracer.writes.computed.get(feed.last, reason)}
        finally:
            for before, after in slots.replaced():
                tracer.replace(before, after)
            slots.restore()
        return {}


class _Feed:
    """The (name, tensor) pairs for a loader, one after the other."""

    def __init__(self, specs: Iterable[TensorSpec], tracer: Tracer) -> None:
        self._specs = specs
        self._tracer = tracer
        self.last = ""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in self._specs:
            self.last = spec.name
            yield spec.name, self._tracer.trace(spec)


def _boxes(specs: Mapping[str, TensorSpec], writes: Writes, write: Write) -> list[Placed]:
    """Return the boxes of a copy; a tensor with too many becomes a computed one."""
    if write.seen is None:
        return []
    (name,) = write.names
    boxes = boxes_of(specs[name].shape, write.seen, write.held)
    if boxes is None:
        writes.compute(write.names, "scattered over too many boxes")
    return boxes or []


def _piece(write: Write, placed: Placed, rank: int) -> Piece:
    (name,) = write.names
    view = LocalView(write.parameter, placed.offset, placed.strides)
    return Piece(name, placed.region, rank, view)


def _all_skipped(traces: Iterable[LoaderTrace]) -> dict[str, None]:
    return dict.fromkeys(name for one in traces for name in one.skipped)


def _excused(writes: Writes, parameters: Mapping[str, torch.Tensor]) -> Iterator[str]:
    yield from (name for name, one in parameters.items() if not isinstance(one, nn.Parameter))
    for write in writes.all():
        if write.seen is None or not writes.computed.keys().isdisjoint(write.names):
            yield write.parameter


def _ends(writes: Writes, name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.parameter for one in writes.all() if name in one.names))
