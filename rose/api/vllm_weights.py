"""rose's entry point in the group `vllm.general_plugins`, which vLLM loads in all processes."""

from collections.abc import Callable, Sequence
from typing import Any

from rose.api.weights import receive
from rose.config import quiet_grpc
from rose.transfer.received import WeightReceiver


def register() -> None:
    """Add the weight transfer backend `rose` to vLLM."""
    from rose.engines.vllm import weights  # noqa: PLC0415 (it imports vLLM)

    weights.register(follow)


def follow(
    address: str,
    token: str,
    make_tensors: Callable[[Sequence[tuple[str, str, Sequence[int]]]], dict[str, Any]],
) -> WeightReceiver:
    """Return a receiver whose new tensors follow a publisher's weights.

    Args:
        address: host and port of `rose.publish`, `rose publish` or `rose relay`.
        token: the publisher's token.
        make_tensors: function that gets a list of (name, dtype as in a safetensors file, shape) and
            returns new tensors by name.

    Raises:
        Unavailable: the publisher does not answer, or has no weights yet.
    """
    quiet_grpc()
    from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415 (an extra)

    source = RemoteSource(address, token)
    try:
        layout = [(one.name, one.dtype, one.shape) for one in source.hello().tensors]
    finally:
        source.close()
    return receive(make_tensors(layout), address, token=token)
