"""Finds the torch stream for a caller's stream, without waiting for the device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from rose.errors import InvalidArgument

# The driver has two handles for the legacy default stream. torch would treat 1 as another stream.
_DEFAULT_HANDLES: Final = (0, 1)


def stream_on(stream: Any, device: Any) -> Any:
    """Return the torch stream for a handle or stream.

    Args:
        stream: a CUDA stream handle as a number (from CuPy, the driver or rose), or a torch stream;
            None for torch's current one.
        device: torch device of the stream, because a handle does not contain it.

    Raises:
        InvalidArgument: `stream` has another type, or is on another GPU.
    """
    if stream is None:
        return torch.cuda.current_stream(device)
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream in _DEFAULT_HANDLES:
            return torch.cuda.default_stream(device)
        return torch.cuda.ExternalStream(stream, device=device)
    if not isinstance(stream, torch.cuda.Stream):
        raise InvalidArgument(
            f"stream must be a handle as a number or a torch stream, got a {type(stream).__name__}"
        )
    if stream.device != device:
        raise InvalidArgument(f"stream must be on the tensor's {device}, got {stream.device}")
    return stream


def on_stream(stream: Any, device: Any) -> AbstractContextManager[Any]:
    """Return a context in which `stream` is torch's current stream; None changes nothing."""
    if stream is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.stream(stream_on(stream, device))
    return context
