"""The failures rose can raise, one class per code of the C++ core, and `check` for its own bugs.

A refusal ("not now") is never an exception: see `rose.events.Refusal`.
"""


class RoseError(Exception):
    """Base of everything rose raises; its text is one sentence for the user."""


class InvalidArgument(RoseError, ValueError):
    """A value the caller can mend; the sentence names it."""


class OutOfMemory(RoseError, MemoryError):
    """The machine has no more of what was asked for."""


class Unavailable(RoseError):
    """A part of the world that is needed is missing or broken."""


class DeadlineExceeded(RoseError, TimeoutError):
    """Something did not happen in time."""


class CorruptData(RoseError):
    """Stored or received bytes are not what was written."""


class InternalError(RoseError):
    """A bug in rose."""


class StepAborted(RoseError):
    """A borrower's step was told to stop at its gate; the engine rolls it back."""


def sentence(error: BaseException) -> str:
    """Return what an error says, or its kind where it says nothing, as Python's MemoryError."""
    return str(error) or type(error).__name__


def check(condition: object, message: str) -> None:
    """Raise `InternalError` when an invariant of rose does not hold; stays under `python -O`."""
    if not condition:
        raise InternalError(message)
