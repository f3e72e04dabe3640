"""The sequences of one request, and the clients that wait for them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from typing_extensions import Self

from rose.adapters.sequences import SequenceInFlight
from rose.errors import DeadlineExceeded, RoseError


class RequestInFlight:
    """A request in flight. Several clients may wait for it if they sent the same key.

    Args:
        limit_s: longest time in seconds from now to the last token.
        over: function to call once, when all sequences have ended.
    """

    def __init__(self, *, limit_s: float, over: Callable[["RequestInFlight"], None]) -> None:
        self.sequences: tuple[SequenceInFlight, ...] = ()
        self.clients = 0
        self.grace: asyncio.TimerHandle | None = None  # runs while no client waits
        self._left = 0  # sequences that have not ended
        self._over = over
        self._waking: list[asyncio.Future[None]] = []
        late = DeadlineExceeded(f"a request must end within {limit_s} s")
        self._alarm = asyncio.get_running_loop().call_later(limit_s, self.fail, late)

    def begin(self, sequences: Sequence[SequenceInFlight]) -> None:
        """Set the sequences. None of them has ended yet."""
        self.sequences = tuple(sequences)
        self._left = len(self.sequences)

    @property
    def is_over(self) -> bool:
        """True if all sequences have ended."""
        return self._left == 0

    def fail(self, error: RoseError) -> None:
        """End all unfinished sequences with an error."""
        for sequence in self.sequences:
            sequence.fail(type(error)(*error.args))

    def ended(self) -> None:
        """Record the end of a sequence."""
        self._left -= 1
        if not self._left:
            self._alarm.cancel()
            if self.grace is not None:
                self.grace.cancel()
            self._over(self)

    def wake(self) -> None:
        """Wake all waiting clients, because a sequence has changed."""
        if self._waking:
            waking, self._waking = self._waking, []
            for one in waking:
                if not one.done():
                    one.set_result(None)

    def change(self) -> asyncio.Future[None]:
        """Return a future that `wake` resolves."""
        one: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waking.append(one)
        return one


class Generation:
    """A client's view of its request. At the end of a `with` block the client leaves.

    Without a client, unfinished sequences are given up, at once or after a grace time.

    Args:
        request: the request.
        left: function to call once, when the client leaves.
    """

    def __init__(self, request: RequestInFlight, left: Callable[[RequestInFlight], None]) -> None:
        self.request = request
        self.sequences = request.sequences
        self._left = left
        self._is_closed = False
        request.clients += 1
        if request.grace is not None:
            request.grace.cancel()
            request.grace = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the request, without waiting. A repeated call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.request.clients -= 1
            self._left(self.request)

    def fail(self, error: RoseError) -> None:
        """End all unfinished sequences with an error, for all clients of the request."""
        self.request.fail(error)

    async def finished(self) -> tuple[SequenceInFlight, ...]:
        """Wait until all sequences have ended, and return them.

        Raises:
            DeadlineExceeded: the request took longer than the limit.
            RoseError: a sequence failed.
        """
        while not self.request.is_over:
            self._check()
            await self.request.change()
        self._check()
        return self.sequences

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever sequences have new tokens, until all have ended.

        Raises:
            RoseError: as in `finished`.
        """
        request = self.request
        for sequence in self.sequences:
            sequence.watch()
        while True:
            is_over = request.is_over
            change = None if is_over else request.change()
            self._check()
            yield
            if change is None:
                return
            await change

    def _check(self) -> None:
        for sequence in self.sequences:
            if sequence.error is not None:
                raise sequence.error
