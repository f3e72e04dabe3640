"""A call of somebody else's code that must not end the scheduler."""

from types import TracebackType


class Order:
    """Keeps what somebody else's code raised, whatever it is: workers and watches are of any make.

    One broken worker is lost; without this it would take the scheduler of all others with it. An
    interrupt is not an error, and passes.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep an error; whoever gave the order looks at it."""
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
