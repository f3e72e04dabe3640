"""The errors rose can raise, one class per code of the C++ core, and `check` for invariants.

A refusal ("not now") is never an exception: see `rose.events.Refusal`.
"""


class RoseError(Exception):
    """Base of everything rose raises; its text is one sentence for the user."""


class InvalidArgument(RoseError, ValueError):
    """A value that the caller can correct; the message names it."""


class OutOfMemory(RoseError, MemoryError):
    """The machine lacks the requested memory."""


class Unavailable(RoseError):
    """A required external part, such as a driver or a peer, is missing or broken."""


class RetryLater(Unavailable):
    """The peer refuses for a known time."""

    def __init__(self, message: str, *, retry_after_ms: float) -> None:
        """Say why and how long.

        Args:
            message: reason of the refusal.
            retry_after_ms: milliseconds until a retry can succeed, > 0.
        """
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DeadlineExceeded(RoseError, TimeoutError):
    """Something did not happen in time."""


class CorruptData(RoseError):
    """Stored or received bytes differ from the bytes that were written."""


class InternalError(RoseError):
    """A bug in rose."""


class StepAborted(RoseError):
    """A borrower's step was aborted at its gate; the engine rolls it back."""


def sentence(error: BaseException) -> str:
    """Return an error's message, or the name of its type if the message is empty."""
    return str(error) or type(error).__name__


def check(condition: object, message: str) -> None:
    """Raise `InternalError` if an invariant of rose does not hold, even under `python -O`."""
    if not condition:
        raise InternalError(message)
