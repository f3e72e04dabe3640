"""What the programs that move weights say on stdout: a sentence for people, or a line of JSON."""

import json
import threading
from typing import Any

import click

from rose.clock import BootClock


class Events:
    """Says what happened, at once. Any thread may call; the lock keeps lines whole.

    Args:
        is_json: a line of JSON for each event, with `time_ns` on CLOCK_BOOTTIME.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._clock = BootClock()
        self._lock = threading.Lock()
        self._troubles: dict[str, str | None] = {}  # the latest of each who has some

    def say(self, event: str, **fields: Any) -> None:
        """Say an event; fields that are None are left out."""
        shown = {name: value for name, value in fields.items() if value is not None}
        if self._is_json:
            line = json.dumps({"event": event, "time_ns": self._clock.now_ns(), **shown})
        else:
            line = " ".join([f"{event}:", *(f"{name}={value}" for name, value in shown.items())])
        with self._lock:
            click.echo(line)

    def trouble(self, sentence: str | None, *, about: str = "") -> None:
        """Say what is in the way, once as long as it is the same; None: nothing is any more.

        Args:
            sentence: what it is.
            about: what it is in the way of; each has its own trouble.
        """
        with self._lock:
            is_news, self._troubles[about] = sentence != self._troubles.get(about), sentence
        if is_news and sentence is not None:
            self.say("trouble", reason=" ".join(sentence.split()))
