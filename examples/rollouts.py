"""Run rollouts on your own workers. One worker loses its memory meanwhile, but no turn is lost.

A worker here is a thread that counts up from the last token of its prompt; yours wraps an engine.
`python examples/rollouts.py` takes a second.
"""

import asyncio
import tempfile
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from rose.scheduler import Capabilities, ElasticRolloutScheduler, FileStore, Sampling
from rose.scheduler.worker import GrantChanged, TurnEnd, TurnOutput, TurnRequest, WorkerKind

TRAJECTORIES, TURNS, TOKENS, SEATS, KV_TOKENS, STEP_S = 8, 3, 40, 4, 10_000, 0.002


class CountingWorker:
    """Generates one token of every turn in each step, as an engine does."""

    def __init__(self, number: int, kind: WorkerKind, scheduler: ElasticRolloutScheduler) -> None:
        self.number, self.kind = number, kind
        self._report = scheduler.receive  # any thread may call it, and it never waits
        self._lock = threading.Lock()
        self._turns: dict[int, TurnRequest] = {}  # the rest of each turn, by trajectory
        self._epoch, self._kv_tokens = 0, 0
        threading.Thread(target=self._run, daemon=True).start()

    def resize(self, kv_tokens: int) -> None:
        """Report a new capacity grant; if the memory is gone, give all turns back first."""
        with self._lock:
            while self._turns and not kv_tokens:
                self._send(self._turns.popitem()[1], (), TurnEnd.INTERRUPTED)
            self._epoch += kv_tokens > 0  # every grant has a higher epoch than the last
            self._kv_tokens = kv_tokens
            self._report(GrantChanged(self.number, self._epoch, kv_tokens, ttl_ms=0.0))

    def start_turn(self, request: TurnRequest) -> None:
        """Take a turn; give a turn that was sent before a revocation back at once."""
        with self._lock:
            if self._kv_tokens and request.grant_epoch == self._epoch:
                self._turns[request.trajectory] = request
            else:
                self._send(request, (), TurnEnd.INTERRUPTED)

    def stop_turn(self, trajectory: int) -> None:
        """Give one turn back."""
        with self._lock:
            if (request := self._turns.pop(trajectory, None)) is not None:
                self._send(request, (), TurnEnd.INTERRUPTED)

    def _run(self) -> None:
        while True:
            time.sleep(STEP_S)
            with self._lock:
                for of in list(self._turns.values()):
                    token, left = of.prompt[-1] + 1, of.max_new_tokens - 1
                    self._send(of, (token,), None if left else TurnEnd.FINISHED)
                    del self._turns[of.trajectory]
                    if left:
                        rest = {"prompt": (*of.prompt, token), "first_token": of.first_token + 1}
                        self._turns[of.trajectory] = replace(of, **rest, max_new_tokens=left)

    def _send(self, of: TurnRequest, tokens: tuple[int, ...], end: TurnEnd | None) -> None:
        where = of.trajectory, of.turn, of.grant_epoch, of.first_token
        logprobs, versions = (0.0,) * len(tokens), (0,) * len(tokens)
        self._report(TurnOutput(self.number, *where, tokens, logprobs, versions, end))


async def roll_out(scheduler: ElasticRolloutScheduler, trajectory: int) -> int:
    """Run all turns of a trajectory; return how many were resumed on another worker."""
    await scheduler.start(trajectory)
    context, resumed, sampling = [1000 * trajectory], 0, Sampling(max_new_tokens=TOKENS)
    for turn in range(TURNS):
        result = await scheduler.generate(trajectory, turn=turn, prompt=context, sampling=sampling)
        context += result.tokens
        resumed += result.resumed > 0
        await asyncio.sleep(0.01)  # a tool runs; its answer would be appended to the context
    await scheduler.finish(trajectory)
    assert context == list(range(context[0], context[0] + 1 + TURNS * TOKENS)), "a token is wrong"
    return resumed


async def main(path: Path) -> None:
    """Roll out on a dedicated and a borrowed worker; the latter is revoked and granted again.

    A restarted scheduler would continue from the store at `path`.
    """
    async with ElasticRolloutScheduler(store=FileStore(path)) as scheduler:
        can = Capabilities(SEATS, prefill_tokens_per_s=1e5, decode_step_ms=1e3 * STEP_S)
        workers = [CountingWorker(n, kind, scheduler) for n, kind in enumerate(WorkerKind)]
        for worker in workers:
            await scheduler.register(worker, can)
            worker.resize(KV_TOKENS)
        tasks = [asyncio.create_task(roll_out(scheduler, n)) for n in range(TRAJECTORIES)]
        for kv_tokens in (0, KV_TOKENS, 0, KV_TOKENS):
            await asyncio.sleep(0.05)
            workers[-1].resize(kv_tokens)
        print(sum(await asyncio.gather(*tasks)), "turns resumed elsewhere, no token lost")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder, "rollouts")))
