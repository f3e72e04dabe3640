"""What every shard map must be before anybody asks what it covers."""

from rose.errors import InvalidArgument
from rose.transfer.plan.regions import contains, described, whole
from rose.transfer.plan.spec import Piece, ShardMap, TensorSpec


def check_pieces(shards: ShardMap) -> None:
    """Refuse a map whose pieces are none of its tensors.

    Raises:
        InvalidArgument: a piece is of no tensor of the map or reaches outside of it, its view has
            other dimensions, or a number is negative; the sentence names the piece.
    """
    for name, spec in shards.tensors.items():
        if spec.name != name:
            raise InvalidArgument(f"the tensor {spec.name} is listed under the name {name}")
        if any(size < 0 for size in spec.shape):
            raise InvalidArgument(f"{name} cannot have the shape {spec.shape}")
    for piece in shards.pieces:
        if piece.tensor not in shards.tensors:
            raise InvalidArgument(f"rank {piece.rank} holds a piece of {piece.tensor}, not listed")
        _check_piece(piece, shards.tensors[piece.tensor])


def _check_piece(piece: Piece, spec: TensorSpec) -> None:
    region, view = piece.region, piece.view
    what = f"the piece {described(region)} of {piece.tensor} on rank {piece.rank}"
    if len(region.shape) != len(spec.shape):
        raise InvalidArgument(f"{what} has other dimensions than its shape {spec.shape}")
    if 0 in spec.shape or not contains(whole(spec.shape), region):
        raise InvalidArgument(f"{what} reaches outside of its shape {spec.shape}")
    if len(view.strides) != len(region.shape):
        raise InvalidArgument(f"{what} has {len(view.strides)} strides")
    if view.offset < 0 or piece.rank < 0 or any(stride < 0 for stride in view.strides):
        raise InvalidArgument(f"{what} has a negative offset, stride or rank")
