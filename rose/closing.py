"""Support for `with` statements."""

from types import TracebackType

from typing_extensions import Self


class Closing:
    """Base class that calls `close` at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Release all resources."""
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
