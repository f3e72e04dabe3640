"""A stage on which workers are revoked, shrunk, stopped and killed, and their news late or doubled.

What a worker says may come late, twice, out of order or, from a borrowed one, not at all. One that
is killed is heard of late, and another comes under another number.
"""

import random
from functools import partial

from rose.rl.loop import News
from rose.scheduler import PlacementPolicy
from rose.scheduler.worker import TurnEnd, WorkerEvent, WorkerKind, WorkerLost
from tests.rl.saying_worker import KV_TOKENS, SayingWorker
from tests.rl.stage import BORROWED, DEDICATED, Stage, joined

TTL_MS = 250.0
LATE_MS = 50
KINDS = (DEDICATED, BORROWED, BORROWED)


class Storm(Stage):
    def __init__(self, seed: int, policy: PlacementPolicy) -> None:
        super().__init__(policy=policy)
        self.random = random.Random(seed)
        self.mail: list[tuple[float, int, News]] = []  # when it is due, order, what
        self.order = 0
        self.happened: set[str] = set()
        for kind in KINDS:
            self.bring(kind)

    def bring(self, kind: WorkerKind) -> None:
        number = len(self.workers)
        ttl_ms = TTL_MS if kind is BORROWED else 0.0
        worker = SayingWorker(number, kind, partial(self.report, kind), ttl_ms=ttl_ms)
        self.workers[number] = worker
        self.loop.join(worker, joined(number, kind, seats=2 + number % 3))
        worker.grant()

    # ---- news on their way

    def report(self, kind: WorkerKind, event: WorkerEvent) -> None:
        if kind is BORROWED and self.chance(0.03, "lost"):
            return
        for _ in range(2 if self.chance(0.1, "doubled") else 1):
            self.post(event, self.random.randint(1, LATE_MS) if self.chance(0.2, "late") else 0)

    def post(self, event: WorkerEvent, after_ms: float) -> None:
        self.order += 1
        self.mail.append((self.clock.now_ms + after_ms, self.order, event))

    def take_news(self) -> list[News]:
        due = sorted(one for one in self.mail if one[0] <= self.clock.now_ms)
        self.mail = [one for one in self.mail if one[0] > self.clock.now_ms]
        return [news for *_, news in due]

    # ---- workers

    def chance(self, odds: float, what: str) -> bool:
        has_come = self.random.random() < odds
        if has_come:
            self.happened.add(what)
        return has_come

    def kill(self, worker: SayingWorker) -> None:
        worker.is_up = False
        worker.running.clear()
        self.post(WorkerLost(worker.number, "killed"), self.random.randint(0, LATE_MS))
        self.bring(worker.kind)

    def live(self, worker: SayingWorker) -> None:
        """Pass one tick in the life of a worker."""
        if self.chance(0.005, "killed"):
            self.kill(worker)
            return
        if worker.kv_tokens == 0:
            if self.random.random() < 0.2:
                worker.grant()
            return
        if worker.kind is BORROWED:
            self.live_on_loan(worker)
        elif self.chance(0.1, "renewed"):
            worker.report_lease()
        for trajectory in list(worker.running):
            if self.chance(0.01, "failed"):
                worker.leave(trajectory, TurnEnd.FAILED)
            else:
                worker.say(
                    trajectory,
                    self.random.randint(0, 4),
                    with_end=not self.chance(0.3, "ended late"),
                )

    def live_on_loan(self, worker: SayingWorker) -> None:
        if self.chance(0.02, "revoked"):
            worker.revoke()
        elif self.chance(0.05, "shrunk"):
            worker.kv_tokens = self.random.choice([150, 400, KV_TOKENS])
            worker.report_lease()
        elif worker.running and self.chance(0.03, "interrupted"):
            worker.leave(self.random.choice(list(worker.running)), TurnEnd.INTERRUPTED)
        elif not self.chance(0.05, "not renewed"):
            worker.report_lease()

    def tick(self) -> None:
        for worker in list(self.workers.values()):
            if worker.is_up:
                self.live(worker)
        self.advance(after_ms=self.random.randint(1, 15))
