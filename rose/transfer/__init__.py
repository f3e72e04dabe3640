"""Fresh weights as deltas: only what changed is packed, applied and, if need be, undone."""

from rose.transfer.codec import delta_apply, delta_pack, digest, topk_pack, topk_unpack
from rose.transfer.delta import Delta

__all__ = ["Delta", "delta_apply", "delta_pack", "digest", "topk_pack", "topk_unpack"]
