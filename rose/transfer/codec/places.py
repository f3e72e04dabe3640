"""The memory of tensors that commits change in place."""

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rose.errors import InvalidArgument


class Places:
    """The memory of tensors: tells when an engine has moved a tensor elsewhere.

    A commit would then change memory that nobody reads. A tensor has moved if its address differs,
    if the mapping has another tensor of its name, or if nobody but the receiver owns its old memory
    any more.

    Args:
        tensors: tensors to watch, before a receiver makes views of them; only those of torch move.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._given = tensors
        torch = sys.modules.get("torch")  # if torch is not imported, there are no torch tensors
        self._tensors = {
            name: (one, one.data_ptr())
            for name, one in tensors.items()
            if torch is not None and isinstance(one, torch.Tensor) and one.numel()
        }
        passed = {id(one): one.untyped_storage() for one, _ in self._tensors.values()}
        self._storages = list(passed.values())  # torch counts each as one more owner
        here = Counter(one._cdata for one in self._storages)
        # Owners of each memory, besides the tensors that were passed.
        self._others = {memory: _owners(memory) - count - 1 for memory, count in here.items()}
        self._own: dict[int, int] = {}

    def watch(self) -> None:
        """Count the receiver's own views, which exist now."""
        self._own = {
            memory: _owners(memory) - others
            for memory, others in self._others.items()
            if others > 0
        }

    def check(self) -> None:
        """Check that no tensor has moved.

        Raises:
            InvalidArgument: tensors have moved; the message names them.
        """
        found = [
            name
            for name, (one, address) in self._tensors.items()
            if one.data_ptr() != address
            or self._given.get(name) is not one
            or _owners(_memory(one)) <= self._own.get(_memory(one), 0)
        ]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise InvalidArgument(moved(f"{found[0]}{more}"))


def moved(name: str) -> str:
    """Return the sentence about a tensor that has moved."""
    return (
        f"{name} moved to other memory since rose.receive was called: call it again with the "
        f"present tensors"
    )


def _memory(tensor: Any) -> int:
    """Return torch's handle of the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)


def _owners(memory: int) -> int:
    """Return how many tensors and views own a memory."""
    return int(sys.modules["torch"]._C._storage_Use_Count(memory))
