"""A process that plays trajectories until all are over; it may be killed at any time.

Its workers die with it, and have other numbers in each life. Before a trajectory is finished, what
it said is written to a file; a life that finds one unfinished says it again from its first turn.
"""

import asyncio
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from rose.errors import InvalidArgument
from rose.scheduler.elastic import ElasticRolloutScheduler
from tests.scheduler.driver_world import SAMPLING, first_prompt, next_prompt, turns_of
from tests.scheduler.elastic_rig import Voices, assert_true, bring, opened


async def play_on(
    scheduler: ElasticRolloutScheduler, trajectory: int, said: Path, news: Connection
) -> None:
    try:
        await scheduler.start(trajectory)
    except InvalidArgument:
        return  # It was there before: an earlier life has finished it.
    prompt = first_prompt(trajectory)
    for turn in range(turns_of(trajectory)):
        result = await scheduler.generate(trajectory, turn=turn, prompt=prompt, sampling=SAMPLING)
        assert_true(result, prompt)
        prompt = next_prompt(prompt, result)
        news.send("turn")
    with said.open("a") as file:
        file.write(f"{trajectory} {prompt}\n")
    await scheduler.finish(trajectory)


async def play_all(folder: Path, life: int, trajectories: int, news: Connection) -> None:
    # Nobody of an earlier life will be back; checkpoints are written while turns come home.
    limits = {"REJOIN_S": 0.05, "CHECKPOINT_S": 0.02}
    async with opened(folder / "scheduler", limits=limits) as scheduler:
        with ExitStack() as stack:
            workers = [await bring(scheduler, 10 * life + one) for one in range(2)]
            stack.enter_context(Voices(*workers, tokens=1))
            said = folder / "said"
            await asyncio.gather(
                *(play_on(scheduler, number, said, news) for number in range(trajectories))
            )
        counts, stats = scheduler.counts(), scheduler.stats()
        news.send((counts.begun, counts.finished, counts.turns, stats.tokens_delivered))


def main(folder: Path, life: int, trajectories: int, news: Connection) -> None:
    asyncio.run(play_all(folder, life, trajectories, news))
