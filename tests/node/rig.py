"""What the tests of workers in other processes share."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest, WorkerEvent, WorkerLost
from rose_lab.demo.rl.supervisor import Supervisor
from tests.node.steady import VERSION, logprob_at, token_at
from tests.waiting import wait_for


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not (set(threading.enumerate()) - before))


def request(trajectory: int, *, tokens: int = 20, prompt: tuple[int, ...] = (1, 2, 3), **changes):
    values = {
        "trajectory": trajectory,
        "turn": 0,
        "grant_epoch": 1,
        "prompt": prompt,
        "first_token": 0,
        "max_new_tokens": tokens,
        "stop_tokens": (),
        "temperature": 1.0,
        "seed": 1000 + trajectory,
    }
    return TurnRequest(**{**values, **changes})


class Program:
    """A program that is started once, and what its supervisor told."""

    def __init__(self, command: list[str], **options) -> None:
        self.ready: list[dict] = []
        self.ends: list[str] = []
        self.order: list[str] = []
        self.lines: list[str] = []
        self.supervisor = Supervisor(
            lambda _incarnation: command,
            self._on_ready,
            lambda reason, _is_final: (self.ends.append(reason), self.order.append("end")),
            on_line=self.lines.append,
            **{"restarts_max": 0, **options},
        )

    def _on_ready(self, _incarnation: int, ready: dict, connection: Connection) -> None:
        self.connection = connection
        self.ready.append(ready)
        self.order.append("ready")

    def say(self, message: object) -> None:
        """Write a line to its stdin."""
        os.write(self.connection.fileno(), json.dumps(message).encode() + b"\n")

    def end(self) -> str:
        """Let it end by SIGTERM, and return how it did."""
        os.kill(self.supervisor.pid, signal.SIGTERM)
        wait_for(lambda: self.ends)
        return self.ends[0]


class Scheduler:
    """Keeps every event of a worker."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []

    def __call__(self, event: WorkerEvent) -> None:
        self.events.append(event)

    def outputs(self, trajectory: int) -> list[TurnOutput]:
        return [
            event
            for event in list(self.events)
            if isinstance(event, TurnOutput) and event.trajectory == trajectory
        ]

    def tokens(self, trajectory: int) -> list[int]:
        return [token for output in self.outputs(trajectory) for token in output.tokens]

    def ends(self, trajectory: int) -> list[TurnEnd]:
        return [output.end for output in self.outputs(trajectory) if output.end is not None]

    def losses(self) -> list[WorkerLost]:
        return [event for event in list(self.events) if isinstance(event, WorkerLost)]

    def check_said(self, asked: TurnRequest) -> None:
        """Every token there is, is there once, in order, bit for bit as it was said."""
        outputs = self.outputs(asked.trajectory)
        place = asked.first_token
        for output in outputs:
            assert output.first_token == place
            at = range(
                len(asked.prompt) + place - asked.first_token,
                len(asked.prompt) + place - asked.first_token + len(output.tokens),
            )
            assert output.tokens == tuple(token_at(asked.seed, position) for position in at)
            assert output.logprobs == tuple(logprob_at(asked.seed, position) for position in at)
            assert output.versions == (VERSION,) * len(at)
            place += len(output.tokens)
