"""The entry point `vllm.general_plugins` of rose, which vLLM loads in all of its processes."""

from collections.abc import Callable, Sequence
from typing import Any

from rose.api.weights import WeightReceiver
from rose.config import quiet_grpc


def register() -> None:
    """Add the weight transfer backend `rose` to vLLM."""
    from rose.engines.vllm import weights  # noqa: PLC0415 (it imports vLLM)

    weights.register(follow)


def follow(
    address: str,
    token: str,
    make_tensors: Callable[[Sequence[tuple[str, str, Sequence[int]]]], dict[str, Any]],
) -> WeightReceiver:
    """Follow a publisher with tensors that are made to its layout.

    Args:
        address: host and port of `rose.publish`, `rose publish` or `rose relay`.
        token: its token.
        make_tensors: returns tensors for names, dtypes as in a safetensors file, and shapes.

    Raises:
        Unavailable: the publisher does not answer, or has no weights yet.
    """
    quiet_grpc()
    from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415 (an extra)

    source = RemoteSource(address, token, tls=None)
    try:
        layout = [(one.name, one.dtype, one.shape) for one in source.hello().tensors]
    finally:
        source.close()
    return WeightReceiver(
        make_tensors(layout), address, token=token, tls=None, manifest_key=b"", name=None
    )
