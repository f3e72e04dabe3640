"""What an experiment runs beside serving, and who hears of serving's requests."""

from collections.abc import Sequence
from typing import Protocol


class Told(Protocol):
    """Who hears of every request of serving: the lane of a device that is shared."""

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        """A request is here; its engine has not seen it."""
        ...

    def emitted(self, request_id: str) -> None:
        """It got a token."""
        ...

    def finished(self, request_id: str) -> None:
        """It is over."""
        ...


class RolloutLoad(Protocol):
    """Rollouts of one arm: they run between `resume` and `pause`."""

    @property
    def tokens(self) -> int:
        """Tokens generated on the device so far."""
        ...

    @property
    def failures(self) -> Sequence[str]:
        """What went wrong; the run ends with it."""
        ...

    def start(self) -> None:
        """Start what is needed; nothing runs before `resume`."""
        ...

    def resume(self) -> None:
        """Let rollouts run."""
        ...

    def pause(self) -> None:
        """Stop rollouts; returns when none runs."""
        ...

    def stop(self) -> None:
        """End what `start` started, but for the engine."""
        ...
