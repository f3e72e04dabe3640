"""The stream that a caller wants work on, as torch has it. The device is never waited for."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from rose.errors import InvalidArgument

# The driver has two names for the legacy default stream; torch takes 1 for a stream of its own.
_DEFAULT_HANDLES: Final = (0, 1)


def stream_on(stream: Any, device: Any) -> Any:
    """Return the torch stream that is meant.

    Args:
        stream: the handle of a CUDA stream as a number (of CuPy, of the driver, of rose), or a
            stream of torch; None for torch's current one.
        device: of torch; a handle does not say whose it is.

    Raises:
        InvalidArgument: it is neither, or of another GPU.
    """
    if stream is None:
        return torch.cuda.current_stream(device)
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream in _DEFAULT_HANDLES:
            return torch.cuda.default_stream(device)
        return torch.cuda.ExternalStream(stream, device=device)
    if not isinstance(stream, torch.cuda.Stream):
        raise InvalidArgument(
            f"stream is a {type(stream).__name__}: pass a handle as a number or a stream of torch"
        )
    if stream.device != device:
        raise InvalidArgument(f"stream is on {stream.device} and the tensor on {device}")
    return stream


def on_stream(stream: Any, device: Any) -> AbstractContextManager[Any]:
    """Make the stream torch's current one for a while; nothing for None."""
    if stream is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.stream(stream_on(stream, device))
    return context
