"""A program that serves one worker until it must end."""

import json
import logging
import secrets
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from rose.errors import InvalidArgument, check
from rose.node.ending import Ending
from rose.node.server import WorkerServer
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost

if TYPE_CHECKING:  # This module imports an engine.
    from rose.node.assembly import AssembledWorker

_LOG = logging.getLogger("rose.node")


def serve_until_stopped(
    assemble: "Callable[[Callable[[WorkerEvent], None]], AssembledWorker]",
    *,
    stdin: IO[str],
    stdout: IO[str],
) -> bool:
    """Serve a worker on a free port of this machine.

    Once the server listens, this writes one line of JSON to `stdout`: its address, the token of the
    run, and the worker's description. If the worker is lost, the program reports this to its
    scheduler and ends, so that it can be restarted.

    Args:
        assemble: makes the worker; takes a callback for the worker's events.
        stdin: lines of JSON for the worker; the program ends when stdin closes.
        stdout: gets the line of JSON.

    Returns:
        True if the program ended on request, False if the worker was lost.
    """
    assembled: list[AssembledWorker] = []
    losses: list[str] = []
    token = secrets.token_urlsafe(32)
    with Ending(stdin.fileno()) as ending:

        def make(on_event: Callable[[WorkerEvent], None]) -> Worker:
            def report(event: WorkerEvent) -> None:
                on_event(event)
                if isinstance(event, WorkerLost):
                    losses.append(event.reason)
                    ending.report(f"the worker is lost: {event.reason}")

            assembled.append(assemble(report))
            return assembled[0].worker

        try:
            with WorkerServer(make, token=token) as server:
                check(len(assembled) == 1, "the server must have made exactly one worker")
                line = {"address": server.address, "token": token, **assembled[0].ready()}
                stdout.write(json.dumps(line) + "\n")
                stdout.flush()
                reason = ending.wait(lambda line: _receive(assembled[0], line))
                _LOG.info("ending: %s", reason)
                is_stopped = not losses  # Read before the close below, which reports a loss too.
        finally:
            # Within `with Ending(...)`, because stopping an engine calls `ending.report` too.
            for one in assembled:
                one.close()
    return is_stopped


def _receive(assembled: "AssembledWorker", line: str) -> None:
    """Pass a line of stdin to the worker; log an invalid one."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        _LOG.warning("a line of stdin must be a JSON object, got '%s'", line[:80])
        return
    try:
        assembled.receive(message)
    except InvalidArgument as error:
        _LOG.warning("a line of stdin is invalid: %s", error)
