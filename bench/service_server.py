"""The rollout service in a process of its own, which reports how much CPU it has used.

`python -m bench.service_server STEP_S` writes the service's URL. For each line on stdin it then
writes the CPU time of the process in ns. After the line `alone EVENTS`, a worker without a service
emits as many tokens, and the CPU time of the worker is written instead.
"""

import asyncio
import sys
import time

from rose.adapters import RolloutService, TrialWorker, rollout_app
from rose.adapters.listening import listening
from rose.scheduler.worker import TurnRequest, WorkerKind

STREAMS = 32


def alone_ns(events: int) -> int:
    """Return the CPU time in which a worker emits tokens that nobody receives."""
    worker = TrialWorker(0, WorkerKind.DEDICATED, lambda _: None, step_s=0)
    worker.grant()
    steps = events // STREAMS
    for trajectory in range(STREAMS):
        worker.start_turn(TurnRequest(trajectory, 0, 1, (1,), 0, steps + 1, (), 1.0, 0))
    begin = time.process_time_ns()
    for _ in range(steps):
        worker.step()
    return time.process_time_ns() - begin


async def main(step_s: float) -> None:
    loop = asyncio.get_running_loop()
    async with RolloutService() as service:
        with TrialWorker(0, WorkerKind.DEDICATED, service.receive, step_s=step_s) as worker:
            await service.register(worker, worker.capabilities)
            worker.grant()
            async with listening(rollout_app(service, model="trial")) as url:
                print(url, flush=True)
                while line := await loop.run_in_executor(None, sys.stdin.readline):
                    word, *rest = line.split()
                    used = alone_ns(int(*rest)) if word == "alone" else time.process_time_ns()
                    print(used, flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
