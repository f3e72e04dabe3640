"""One trainer rank's tiles of each checkpoint, served to the publisher on rank 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.cli.weights.options import WeightOptions, observed, until_signal
from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.transfer.named import NamedRow
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import Tiling
from rose.transfer.tiles import ShardViews

_LOOK_S: Final = 1.0


def check_plan(plan: Plan | None, rank: int | None, parts: Sequence[str]) -> None:
    """Check that --rank and --part fit the plan: rank 0 needs the parts of all other ranks.

    Raises:
        InvalidArgument: an option does not fit the plan.
    """
    if rank is None and not parts:
        return
    if plan is None:
        raise InvalidArgument("--rank and --part need a --plan, which assigns tiles to ranks")
    ranks = len(plan.sources.shards.ranks)
    if rank is not None and rank >= ranks:
        raise InvalidArgument(
            f"--rank must be 0 to {ranks - 1}, since the trainer has {ranks} ranks in its plan, "
            f"got {rank}"
        )
    if rank and parts:
        raise InvalidArgument(f"only rank 0 takes --part, and this is rank {rank}")
    if not rank and len(parts) != ranks - 1:
        raise InvalidArgument(
            f"rank 0 needs one --part for each other rank, {ranks - 1} in all, got {len(parts)}"
        )


def rows_of(opened: Checkpoint) -> list[NamedRow]:
    """Return the tensors of a checkpoint as rows of units that share its memory."""
    return [
        NamedRow(one.stored, (), one.units(0, one.count), None) for one in opened.tensors.values()
    ]


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """The tiles that one rank sends, read from checkpoints that are found by name.

    Args:
        plan: plan that assigns tiles to ranks.
        rank: rank of the trainer.
        first: first checkpoint.
        folder: folder of later checkpoints; None if there are none.
    """

    plan: Plan
    rank: int
    first: Path
    folder: Path | None

    @property
    def owned(self) -> Sequence[int]:
        """Tiles of the rank, ascending."""
        return self.plan.contributes(self.rank)

    def tiling(self) -> Tiling:
        """Return the tiling of the first checkpoint.

        Raises:
            InvalidArgument, CorruptData: the checkpoint cannot be read, or does not fit the plan.
        """
        return open_checkpoint(self.first).tiling(self.plan)

    def shadow(self, label: str) -> ShardViews:
        """Return copies of the rank's tiles of a checkpoint.

        Raises:
            Unavailable: the checkpoint is missing or damaged.
        """
        views = self.fresh(label)
        return ShardViews({tile: (views.bits(tile).copy(),) for tile in self.owned})

    def fresh(self, label: str) -> ShardViews:
        """Return views of the rank's tiles in a checkpoint's files.

        Raises:
            Unavailable: the checkpoint is missing or damaged.
        """
        path = self._path(label)
        try:
            opened = open_checkpoint(path)
            units = {one.stored.name: one.row for one in rows_of(opened)}
            return opened.tiling(self.plan).views(units, self.owned)
        except (CorruptData, InvalidArgument) as error:
            raise Unavailable(f"rank {self.rank} cannot read {path.name}: {error}") from error

    def _path(self, label: str) -> Path:
        if label == self.first.name:
            return self.first
        if self.folder is None or Path(label).name != label:
            raise Unavailable(f"rank {self.rank} has no checkpoint named '{label}'")
        return self.folder / label


def serve_part(part: CheckpointPart, listen: str, threads: int, options: WeightOptions) -> None:
    """Print the server's address, and serve a part until a signal comes.

    Raises:
        InvalidArgument: the checkpoint does not fit the plan, or the address is not allowed.
        Unavailable: the port is taken.
    """
    # Imported here: it needs the extra `wire`, and `quiet_grpc` must run before gRPC is imported.
    from rose.transfer.wire.part_server import PartServer  # noqa: PLC0415

    tiles = part.tiling().tiles
    tls, token = options.security.tls, options.security.token.hex()
    timeline = Timeline(f"rank {part.rank}")
    with (
        until_signal(),
        PartServer(
            part.owned, tiles, part.fresh, listen, token=token, tls=tls, threads=threads
        ) as server,
        observed(options, "publisher", dict, timeline),
    ):
        options.events.report(
            "serving", address=server.address, rank=part.rank, tiles=len(part.owned)
        )
        _wait_for_ever()
    options.events.report("ended")


def _wait_for_ever() -> None:
    """Wait until a signal comes."""
    clock = BootClock()
    while True:
        clock.sleep(_LOOK_S)
