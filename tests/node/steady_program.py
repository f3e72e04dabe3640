"""A steady worker served by a process of its own: `python -m tests.node.steady_program PACE_S`."""

import sys

from rose.errors import InvalidArgument, Unavailable
from rose.node.program import serve_until_stopped
from rose.scheduler.worker import WorkerLost
from tests.node.steady import VERSION, SteadyWorker

DEADLY_SEED = 666


class MortalWorker(SteadyWorker):
    """Dies when it is asked to say what it must not."""

    def start_turn(self, request) -> None:
        if request.seed == DEADLY_SEED:
            self.on_event(WorkerLost(self.number, "its loop died"))
            raise Unavailable("it is dead")
        super().start_turn(request)


class Steady:
    def __init__(self, on_event) -> None:
        self.worker = MortalWorker(1, on_event, pace_s=float(sys.argv[1]))

    def ready(self):
        return {"version": VERSION, "seats": 4}

    def receive(self, message) -> None:
        if "lost" not in message:
            raise InvalidArgument("that is nothing to say")
        self.worker.on_event(WorkerLost(self.worker.number, message["lost"]))

    def close(self) -> None:
        self.worker.stop()


if __name__ == "__main__":
    sys.exit(0 if serve_until_stopped(Steady, stdin=sys.stdin, stdout=sys.stdout) else 1)
