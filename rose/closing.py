"""What is closed at the end of a `with`."""

from types import TracebackType

from typing_extensions import Self


class Closing:
    """Gives a class with `close` the two methods of a `with` statement."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
