"""What an experiment runs beside serving, and who hears of serving's requests."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from rose.engines.transformers import Engine


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


class RolloutLoad(ABC):
    """Rollouts of one arm on an engine: they run between `resume` and `pause`.

    Args:
        engine: is started with the rollouts, and its owner's to stop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens generated on the device so far."""

    @property
    def failures(self) -> Sequence[str]:
        """What went wrong; the run ends with it."""
        return [] if self._engine.error is None else [str(self._engine.error)]

    @abstractmethod
    def start(self) -> None:
        """Start what is needed; nothing runs before `resume`."""

    def resume(self) -> None:
        """Let rollouts run."""
        self._engine.resume()

    def pause(self) -> None:
        """Stop rollouts at a step boundary, where they keep their KV; returns when none runs."""
        self._engine.pause()

    def stop(self) -> None:
        """End what `start` started, and let the engine run, so that it can be stopped."""
        if self._engine.is_running:
            self._engine.resume()
