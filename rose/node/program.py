"""A program that serves one worker until it is told to end."""

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

from rose.errors import check
from rose.node.ending import Ending
from rose.node.server import WorkerServer
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost

_LOG = logging.getLogger("rose.node")


class Assembled(Protocol):
    """A worker, with all that it needs to run."""

    @property
    def worker(self) -> Worker:
        """Serve this."""
        ...

    def ready(self) -> Mapping[str, Any]:
        """Say what a scheduler wants to know of it: values of JSON."""
        ...

    def close(self) -> None:
        """Stop it, and join its threads."""
        ...


def serve_until_told(
    assemble: Callable[[Callable[[WorkerEvent], None]], Assembled],
    *,
    stdin: IO[str],
    stdout: IO[str],
) -> bool:
    """Serve a worker on a free port of this machine.

    When it can be reached, one line of JSON on `stdout` says where, with the token of this run and
    what the worker says of itself. A worker that is lost ends the program, when its scheduler has
    heard of it: a process that is gone can be started again.

    Args:
        assemble: makes the worker; its argument takes the worker's events.
        stdin: its end is the end of the program.
        stdout: takes the line.

    Returns:
        Whether it was told to end; False if the worker was lost.
    """
    assembled: list[Assembled] = []
    losses: list[str] = []
    token = secrets.token_urlsafe(32)
    with Ending(stdin.fileno()) as ending:

        def make(on_event: Callable[[WorkerEvent], None]) -> Worker:
            def tell(event: WorkerEvent) -> None:
                on_event(event)
                if isinstance(event, WorkerLost):
                    losses.append(event.reason)
                    ending.tell(f"the worker is lost: {event.reason}")

            assembled.append(assemble(tell))
            return assembled[0].worker

        try:
            with WorkerServer(make, token=token) as server:
                check(len(assembled) == 1, "a server makes one worker")
                line = {"address": server.address, "token": token, **assembled[0].ready()}
                stdout.write(json.dumps(line) + "\n")
                stdout.flush()
                _LOG.info("ending: %s", ending.wait())
        finally:
            # Still entered: the end of an engine is an event too.
            for one in assembled:
                one.close()
    return not losses
