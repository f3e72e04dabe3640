"""The place of a process among the ranks of a trainer or of an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.transfer.plan import ShardMap

RANKS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Shards:
    """This process is one rank of several, which publish or receive one set of weights together.

    Args:
        rank: rank of this process, from 0.
        ranks: number of ranks.
        replica: name of the engine, the same on all of its ranks; other engines have other names.
            A trainer does not need it.
        load_weights: the engine's own loader, such as `model.load_weights` of vLLM and SGLang,
            which cuts and fuses the tensors of a checkpoint. It is traced, not run. None: the
            engine's tensors have the trainer's names.
        layout: map of all ranks, for memory that is not described by DTensors, such as that of
            `megatron_layout`. None: DTensors are parts, and other tensors are whole.
        within_s: longest wait for other ranks, and for the publisher, to start, in seconds.
        barrier_s: time for all ranks of an engine to come to `commit`, and then to commit, in
            seconds.
    """

    rank: int
    ranks: int
    replica: str = ""
    load_weights: Callable[[Any], Any] | None = None
    layout: ShardMap | None = None
    within_s: float = 600.0
    barrier_s: float = 30.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.ranks <= RANKS_MAX or not 0 <= self.rank < self.ranks:
            raise InvalidArgument(
                f"rank must be from 0 to ranks - 1, got rank {self.rank} of {self.ranks} ranks"
            )
