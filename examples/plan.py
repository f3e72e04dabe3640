"""A plan of the parts of a checkpoint that each rank of an engine receives, for rose's commands.

Run `python examples/plan.py FOLDER`, and in that folder the commands that docs/transfer.md shows.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from rose.engines.shards import Replicate, Shard, pieces_of_placements, shard_map_of
from rose.transfer.plan import ShardMap
from rose.transfer.plan.files import ShardFile, shards_to_json

RANKS = 2
# The first layer is cut by rows and the second by columns, as under tensor parallelism.
CUTS = {"0.weight": Shard(0), "0.bias": Shard(0), "1.weight": Shard(1), "1.bias": Replicate()}


def main(folder: Path) -> None:
    """Write a checkpoint, the shard map of a trainer with whole tensors, and an engine's."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
    tensors = model.state_dict()
    (folder / "checkpoint").mkdir(exist_ok=True)
    save_file(tensors, folder / "checkpoint" / "model.safetensors")

    whole = shard_map_of(tensors)
    pieces = [
        piece
        for name, cut in CUTS.items()
        for piece in pieces_of_placements(name, tensors[name].shape, (RANKS,), (cut,))
    ]
    halves = ShardMap(whole.tensors, tuple(pieces), {})
    for name, shards in (("trainer", whole), ("tp2", halves)):
        (folder / f"{name}.json").write_bytes(shards_to_json(ShardFile(shards)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
