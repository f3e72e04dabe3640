"""Named tensors of a trainer or an engine, as rows of the units that the codec sees."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from rose import _core
from rose.errors import InvalidArgument
from rose.transfer.codec.places import moved
from rose.transfer.codec.tensor import bits_of
from rose.transfer.plan.tiling import Tiling
from rose.transfer.tensors import StoredTensor
from rose.transfer.tiles import ShardViews

# Name → array or tensor, or an object with `state_dict()`, such as a module of torch.
Tensors: TypeAlias = Any
# Own name → published name; None leaves the tensor out.
Names: TypeAlias = Mapping[str, str] | Callable[[str], str | None]

# Names that wrappers put into the path of a parameter, and the prefixes that they put before it.
_WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PREFIXES: Final = ("module.", "base_model.model.")
_SHOWN: Final = 3  # names in an error
NAME_MAX: Final = 1 << 16  # characters of a name


class NamedRow(NamedTuple):
    """The elements of one tensor, under all its names.

    Args:
        stored: its first name, its dtype and its shape.
        aliases: further names of the same elements in the same order, such as tied weights.
        row: (units,) its units; a copy if the tensor is not contiguous.
        tensor: the tensor as the caller passed it.
    """

    stored: StoredTensor
    aliases: tuple[str, ...]
    row: Any
    tensor: Any

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return (self.stored.name, *self.aliases)


def named_rows(
    tensors: Tensors, *, names: Names | None = None, is_written: bool = False
) -> list[NamedRow]:
    """Return each distinct tensor once, in the order of the first names.

    Two names belong to one tensor if they have the same elements in the same order. The names that
    wrappers add to a path are removed: `module.`, `_orig_mod.`, `base_model.model.`, ...

    Args:
        tensors: name → tensor, or an object with `state_dict()`.
        names: own name → published name, as a mapping or a function; a name that a mapping lacks
            stays, and a function returns None to leave a tensor out.
        is_written: whether commits will change the tensors in place.

    Raises:
        InvalidArgument: there are no tensors, a name or a dtype is not supported, or the tensors
            cannot be written in place; the message names the tensor.
    """
    found: dict[object, NamedRow] = {}
    owners: dict[str, object] = {}  # elements by published name
    for name, tensor in _renamed(tensors_by_name(tensors), names):
        check_whole(name, tensor)
        if str(getattr(tensor, "device", "")) == "meta":
            raise InvalidArgument(f"{name} is on the device meta, without memory: load it first")
        bits = bits_of(name, tensor, is_written=is_written)
        if is_written and len(bits.bits.shape) != 1:
            raise InvalidArgument(
                f"{name} must be contiguous, since commit changes tensors in place"
            )
        here = _Elements.of(bits.bits)
        key = here if here.nbytes else name  # an empty tensor shares nothing
        if not is_written and owners.setdefault(name, key) != key:
            raise InvalidArgument(f"two tensors are named {name}: names= must tell them apart")
        seen = found.get(key)
        if seen is None:
            stored = StoredTensor.of(name, bits.dtype, bits.shape)
            found[key] = NamedRow(stored, (), bits.bits.reshape(-1), tensor)
        elif name not in seen.names:
            found[key] = seen._replace(aliases=(*seen.aliases, name))
    if not found:
        raise InvalidArgument("tensors must have at least one entry, got none")
    rows = sorted(found.values(), key=lambda one: one.stored.name)
    if is_written:
        _check_apart(rows)
    return rows


def views_of(tiling: Tiling, rows: Mapping[str, Sequence[NamedRow]]) -> ShardViews:
    """Return the tiles of tensors as views.

    Args:
        tiling: tiles of the tensors.
        rows: by name, the rows that hold the tensor; a tied tensor may have several.
    """
    return ShardViews(_views(tiling, rows))


def placed_views(tiling: Tiling, rows: Mapping[str, Sequence[NamedRow]]) -> ShardViews:
    """Return views for writing, which refuse a tile whose tensor has new memory by now."""
    tensors = {
        name: [
            (one.stored.name, one.tensor, one.tensor.data_ptr())
            for one in some
            if hasattr(one.tensor, "data_ptr")
        ]
        for name, some in rows.items()
    }
    return _PlacedViews(_views(tiling, rows), lambda tile: tensors[tiling.place(tile).tensor])


def _views(tiling: Tiling, rows: Mapping[str, Sequence[NamedRow]]) -> dict[int, tuple[Any, ...]]:
    return {
        tile: tuple(tiling.view(tile, one.row) for one in rows[tiling.place(tile).tensor])
        for tile in range(len(tiling.tiles))
    }


class _PlacedViews(ShardViews):
    """Views that look at their tensors before each access.

    Some methods of torch, such as `share_memory_`, free a tensor's memory although others use it.

    Args:
        places: views by tile.
        tensors: function that returns the name, tensor and address of each tensor of a tile.
    """

    def __init__(
        self,
        places: Mapping[int, tuple[Any, ...]],
        tensors: Callable[[int], Sequence[tuple[str, Any, int]]],
    ) -> None:
        super().__init__(places)
        self._tensors = tensors

    def _at(self, tile: int) -> tuple[Any, ...]:
        for name, tensor, address in self._tensors(tile):
            if tensor.data_ptr() != address:
                raise InvalidArgument(moved(name))
        return super()._at(tile)


def matched(
    own: Sequence[NamedRow], theirs: Sequence[NamedRow], *, what: str
) -> dict[str, list[NamedRow]]:
    """Find the rows of own tensors for each published tensor, by any of their names.

    Args:
        own: an engine's tensors.
        theirs: published tensors; their rows are not read.
        what: the publisher, for errors.

    Returns:
        Own rows by the first name of the published tensor.

    Raises:
        InvalidArgument: a tensor is missing, superfluous, or of another dtype or shape; or tensors
            that share memory here are two tensors at the publisher.
    """
    known = {name: one for one in theirs for name in one.names}
    rows: dict[str, list[NamedRow]] = {one.stored.name: [] for one in theirs}
    extra: list[str] = []
    for one in own:
        there = {known[name].stored.name: name for name in one.names if name in known}
        if not there:
            extra.append(one.stored.name)
        elif len(there) > 1:
            raise InvalidArgument(
                f"{' and '.join(there.values())} share memory here, but are different tensors at "
                f"{what}: tie them there, or untie them here"
            )
        else:
            first, name = next(iter(there.items()))
            _check_alike(name, one.stored, known[name].stored, what)
            rows[first].append(one)
    missing = [name for name, some in rows.items() if not some]
    if missing or extra:
        raise InvalidArgument(_difference(missing, extra, what))
    return rows


def _check_alike(name: str, own: StoredTensor, other: StoredTensor, what: str) -> None:
    """Check that an own tensor can hold a published one; a tied tensor may have another shape."""
    is_tied = not own.name == other.name == name
    is_alike = own.count == other.count if is_tied else own.shape == other.shape
    if own.dtype != other.dtype or not is_alike:
        raise InvalidArgument(
            f"the tensors must be those of {what}: {name} is {own.dtype} {own.shape}, not "
            f"{other.dtype} {other.shape}"
        )


def _difference(missing: Sequence[str], extra: Sequence[str], what: str) -> str:
    parts = []
    if missing:
        parts.append(f"{_shown(missing)} missing")
    if extra:
        parts.append(f"{_shown(extra)} not among them")
    hint = "; pass names= to map own names to published names" if missing and extra else ""
    return f"the tensors must be those of {what}: {', and '.join(parts)}{hint}"


def _shown(names: Sequence[str]) -> str:
    some = [name if name.isprintable() and name else repr(name) for name in names[:_SHOWN]]
    if len(names) == 1:
        return f"{some[0]} is"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(some)}{more} are"


def tensors_by_name(tensors: Tensors) -> Mapping[str, Any]:
    """Return tensors by name; those of a module are its `state_dict()`.

    Raises:
        InvalidArgument: these are no named tensors, or a name is not text.
    """
    if not isinstance(tensors, Mapping):
        if not hasattr(tensors, "state_dict"):
            raise InvalidArgument(
                f"pass tensors by name, or a module with state_dict(), got a "
                f"{type(tensors).__name__}"
            )
        tensors = tensors.state_dict()
    given: Mapping[str, Any] = tensors
    for name in given:
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a tensor must be text, got {name!r}")
        if len(name) > NAME_MAX:
            raise InvalidArgument(
                f"the name of a tensor must have at most {NAME_MAX} characters, got {len(name)}"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"the name {name!r} must be text that UTF-8 can hold") from None
    return given


def _renamed(given: Mapping[str, Any], names: Names | None) -> Iterator[tuple[str, Any]]:
    plain = _unwrapped(list(given))
    if names is not None and not callable(names) and not isinstance(names, Mapping):
        raise InvalidArgument(f"names= must be a mapping or a function, got {names!r:.40}")
    if isinstance(names, Mapping):
        unknown = [name for name in names if name not in plain and name not in plain.values()]
        if unknown:
            raise InvalidArgument(f"names= maps {unknown[0]!r:.80}, which is no tensor's name")
    for name, tensor in given.items():
        bare: str | None = plain[name]
        if callable(names):
            bare = names(plain[name])
        elif names is not None:
            bare = names.get(name, names.get(plain[name], plain[name]))
        if bare is not None:
            if not isinstance(bare, str):
                raise InvalidArgument(f"names= must map {name} to text or None, got {bare!r:.40}")
            yield bare, tensor


def _unwrapped(names: Sequence[str]) -> dict[str, str]:
    """Return names without the parts that wrappers add; as they are, if two would become equal."""
    bare = [".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in names]
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) and name != prefix for name in bare):
            bare = [name.removeprefix(prefix) for name in bare]
    return dict(zip(names, bare if len(set(bare)) == len(names) else names, strict=True))


def check_whole(name: str, tensor: Any) -> None:
    """Refuse a part of a tensor, which must not be published as if it were the whole.

    Raises:
        InvalidArgument: the tensor is a DTensor, or was emptied by ZeRO-3.
    """
    if hasattr(tensor, "device_mesh"):
        raise InvalidArgument(
            f"{name} is a DTensor, of which this rank holds a part: pass shards=rose.Shards(rank, "
            "ranks) on every rank, or the tensors of get_model_state_dict with full_state_dict"
        )
    whole = getattr(tensor, "ds_shape", None) or getattr(tensor, "ds_numel", None)
    if whole and 0 in tensor.shape:
        raise InvalidArgument(
            f"{name} is empty, because ZeRO-3 keeps its elements elsewhere: gather it with "
            "deepspeed.zero.GatheredParameters or a full_state_dict, and pass the whole tensor"
        )


class _Elements(NamedTuple):
    """Where the elements of a tensor are, and their order; equal for views of the same elements."""

    place: str
    address: int
    unit_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, bits: Any) -> "_Elements":
        if hasattr(bits, "data_ptr"):
            place, unit_bytes = str(bits.device), bits.element_size()
            return cls(place, bits.data_ptr(), unit_bytes, tuple(bits.shape), bits.stride())
        return cls("cpu", _core.address_of(bits), bits.itemsize, bits.shape, bits.strides)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.unit_bytes


def _check_apart(rows: Sequence[NamedRow]) -> None:
    """Check that no two tensors share memory in part: a commit would change both.

    Raises:
        InvalidArgument: two tensors do; the message names both.
    """
    spans = [(_Elements.of(one.row), one.stored.name) for one in rows]
    spans.sort(key=lambda span: (span[0].place, span[0].address, span[0].nbytes))
    for (one, name), (other, other_name) in pairwise(spans):
        is_apart = one.place != other.place or one.address + one.nbytes <= other.address
        if not is_apart and other.nbytes:
            raise InvalidArgument(
                f"{name} and {other_name} share memory here without being equal: pass only one of "
                f"them"
            )
