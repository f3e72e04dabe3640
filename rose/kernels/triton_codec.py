"""The Triton twins as one codec."""

from rose.kernels.delta_apply import delta_apply
from rose.kernels.delta_pack import delta_pack
from rose.kernels.digest import digest
from rose.kernels.topk_pack import topk_threshold
from rose.kernels.topk_unpack import topk_unpack


class TritonCodec:
    """The functions of this room, for any GPU that Triton compiles for."""

    delta_pack = staticmethod(delta_pack)
    delta_apply = staticmethod(delta_apply)
    topk_threshold = staticmethod(topk_threshold)
    topk_unpack = staticmethod(topk_unpack)
    digest = staticmethod(digest)
