"""Follows tensors without elements through a loader: their views, and the targets of copies."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from rose.engines.shards.storages import (
    dtype_of,
    is_view,
    look_of,
    storage_of,
    tensors_in,
    written_by,
)
from rose.engines.shards.writes import Write, Writes
from rose.errors import InvalidArgument, RoseError
from rose.transfer.plan import TensorSpec

_META: Final = torch.device("meta")
_ATEN: Final = torch.ops.aten
# Operations that create a tensor like another, and read none of its elements.
_LIKE: Final = frozenset(
    "empty_like new_empty new_empty_strided zeros_like new_zeros ones_like new_ones full_like "
    "new_full".split()
)
# Operations that only copy elements; the trace follows the original instead of the copy.
_SAME: Final = (_ATEN.clone.default, _ATEN._to_copy.default)


class Untraceable(RoseError):
    """An operation needs elements that a traced tensor does not have."""

    def __init__(self, names: Iterable[str], operation: str) -> None:
        self.names = frozenset(names)
        super().__init__(f"{operation} reads elements of {', '.join(sorted(self.names))}")


class Tracer(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """While active, intercepts every operation of one thread and keeps parameters unchanged.

    Traced tensors are on the device "meta", where an operation computes only shapes and strides, so
    torch itself computes their views. A copy into a parameter is recorded and not executed. Any
    other operation, except a view, makes the traced tensor a *computed* one. The operation's result
    is followed as far as possible, to find the parameters that depend on the tensor.

    Args:
        parameters: parameters and buffers to keep unchanged, by name; each storage once.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.writes = Writes()
        self.raised: set[str] = set()
        self._homes = {storage_of(one): name for name, one in parameters.items()}
        self._traced: dict[int, str] = {}
        self._made_of: dict[int, frozenset[str]] = {}
        # The maps above identify storages by address. These tensors stay alive, so that no new
        # storage gets such an address.
        self._alive: list[torch.Tensor] = []

    def trace(self, spec: TensorSpec) -> torch.Tensor:
        """Return a traced tensor without elements.

        Raises:
            InvalidArgument: torch has no such dtype.
        """
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise InvalidArgument(
                f"{spec.name} must have a dtype of torch, such as 'bfloat16', got {spec.dtype!r}"
            )
        tensor = torch.empty(spec.shape, dtype=dtype, device=_META)
        self._alive.append(tensor)
        self._traced[storage_of(tensor)] = spec.name
        return tensor

    def replace(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """Record the replacement of a parameter by another tensor."""
        home = self._homes[storage_of(before)]
        names = self._names(after)
        self.writes.compute(names, "it replaces a parameter")
        self.writes.add(Write(home, look_of(before), names, "assignment"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record operations that read traced elements or write parameters; execute the others."""
        kwargs = kwargs or {}
        if is_view(func):
            return self._view(func, args, kwargs)
        written = written_by(func, args, kwargs)
        if func is _ATEN.copy_.default:
            return self._copy(*args[:2])
        names = self._read(args, kwargs, written)
        if written and (names or any(storage_of(one) in self._homes for one in written)):
            return self._write(func, written, names)
        if not names or func.overloadpacket.__name__ in _LIKE:
            return func(*args, **kwargs)
        if func in _SAME and kwargs.get("dtype") in {None, args[0].dtype} and _is_meta(args[0]):
            return _ATEN.alias.default(args[0])
        return self._make(func, names, args, kwargs)

    # ---- origin of elements -------------------------------------------------------------------

    def _names(self, tensor: torch.Tensor) -> frozenset[str]:
        """Return the traced tensors from which a tensor's elements come."""
        storage = storage_of(tensor)
        if storage in self._traced:
            return frozenset({self._traced[storage]})
        if storage in self._homes:
            return self.writes.names_in(self._homes[storage], look_of(tensor))
        return self._made_of.get(storage, frozenset())

    def _read(self, args: Any, kwargs: Any, written: list[torch.Tensor]) -> frozenset[str]:
        """Return the traced tensors that an operation reads, not counting parameters it writes."""
        homes = {id(one) for one in written if storage_of(one) in self._homes}
        read = [one for one in tensors_in(args, kwargs) if id(one) not in homes]
        return frozenset().union(*map(self._names, read))

    def _taint(self, tensor: torch.Tensor, names: frozenset[str]) -> None:
        """Record the origins of a tensor that is not a parameter."""
        storage = storage_of(tensor)
        if storage not in self._traced and storage not in self._homes:
            self._alive.append(tensor)
            self._made_of[storage] = self._made_of.get(storage, frozenset()) | names

    # ---- operations ---------------------------------------------------------------------------

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            seen = func(*args, **kwargs)
        except RuntimeError:
            names = self._names(args[0])
            if func is not _ATEN.view.default or not names or not _is_meta(args[0]):
                raise
            # If the copy that `_SAME` omits had been made, this would be a view.
            self.writes.compute(names, "reshape that is not a view")
            return self._reshape(args[0], args[1], names)
        if isinstance(seen, torch.Tensor) and seen.element_size() != args[0].element_size():
            self.writes.compute(self._names(args[0]), f"{_name(func)} as {dtype_of(seen)}")
        return seen

    def _copy(self, to: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        names, home = self._names(of), self._homes.get(storage_of(to))
        if home is None:
            if not names:
                return _ATEN.copy_.default(to, of)
            self.writes.compute(names | self._names(to), "copied into a non-parameter")
            self._taint(to, names)
            return to
        seen = None
        if storage_of(of) not in self._traced:
            self.writes.compute(names, "copied out of a parameter")
        elif why := _why_no_copy(to, of):
            self.writes.compute(names, why)
        else:
            seen = look_of(of)
        if to.numel():
            self.writes.add(Write(home, look_of(to), names, "copy_", seen))
        return to

    def _write(self, func: Any, written: list[torch.Tensor], names: frozenset[str]) -> Any:
        """Record an in-place operation, without executing it."""
        self.writes.compute(names, _name(func))
        for tensor in written:
            home = self._homes.get(storage_of(tensor))
            if home is None:
                self._taint(tensor, names)
            elif tensor.numel():
                self.writes.add(Write(home, look_of(tensor), names, _name(func)))
        count = len(func._schema.returns)
        return None if count == 0 else written[0] if count == 1 else tuple(written)

    def _make(self, func: Any, names: frozenset[str], args: Any, kwargs: Any) -> Any:
        """Follow a result computed from traced tensors."""
        self.writes.compute(names, _why_computed(func, args, kwargs))
        if any(map(_is_meta, tensors_in(args, kwargs))):
            args, kwargs = tree_map_only(torch.Tensor, _on_meta, (args, kwargs))
            kwargs = {key: _META if key == "device" else one for key, one in kwargs.items()}
        try:
            if func is _ATEN._unsafe_view.default:
                return self._reshape(args[0], args[1], names)
            made = func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            self.raised |= names
            raise Untraceable(names, _name(func)) from error
        if not tensors_in(made):
            self.raised |= names
            raise Untraceable(names, _name(func))
        for tensor in tensors_in(made):
            self._taint(tensor, names)
        return made

    def _reshape(self, tensor: torch.Tensor, shape: Any, names: frozenset[str]) -> torch.Tensor:
        """Return a new tensor of `shape`, which stands for the copy that stock torch would make."""
        made = torch.empty_like(tensor, memory_format=torch.contiguous_format).view(shape)
        self._taint(made, names)
        return made


def _why_no_copy(to: torch.Tensor, of: torch.Tensor) -> str | None:
    """Return the reason why a copy converts or repeats elements; None if it does not.

    Raises:
        InvalidArgument: the shapes do not fit together.
    """
    if to.dtype != of.dtype:
        return f"converted from {dtype_of(of)} to {dtype_of(to)}"
    if to.shape != of.shape:
        try:
            of.expand(to.shape)
        except RuntimeError as error:
            raise InvalidArgument(
                f"the loader must keep shapes, but copied {tuple(of.shape)} into {tuple(to.shape)}"
            ) from error
        return "expand"
    steps = zip(of.shape, of.stride(), strict=True)
    return "expand" if any(size > 1 and step == 0 for size, step in steps) else None


def _why_computed(func: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    if func is _ATEN._to_copy.default and kwargs.get("dtype") not in {None, args[0].dtype}:
        to = str(kwargs["dtype"]).removeprefix("torch.")
        return f"converted from {dtype_of(args[0])} to {to}"
    return "reshape that is not a view" if func is _ATEN._unsafe_view.default else _name(func)


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__)


def _is_meta(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "meta")


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if _is_meta(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
