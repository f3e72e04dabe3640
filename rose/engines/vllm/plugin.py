"""The entry point `vllm.general_plugins` of rose, which vLLM loads in all of its processes."""

from typing import Final

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND: Final = "rose"
# By name, since it is made above this floor.
_ENGINE: Final = "rose.api.vllm_weights:RoseWeights"


def register() -> None:
    """Register the weight transfer backend; again: do nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, *_ENGINE.split(":"))
