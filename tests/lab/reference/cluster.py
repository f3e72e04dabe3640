"""One dedicated worker, one job and its trainer, step by step: slow, and plain to read.

Every turn starts the moment it is ready, so the worlds must have a seat and room for each.
"""

import heapq
from dataclasses import dataclass, field

from rose_lab.sim.cluster.world import ClusterWorld, TrainerMode

_NEVER = float("inf")


@dataclass
class _Sequence:
    trajectory: int
    context: int
    prompt_left: int
    left: int
    said: int = 0
    is_saying: bool = False


@dataclass
class PlainOutcome:
    """When, in milliseconds, each trajectory was done and each version out, and what used whom."""

    done_ms: dict[int, float] = field(default_factory=dict)
    published_ms: list[float] = field(default_factory=list)
    used_by: dict[int, int] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    tokens: int = 0


class PlainCluster:
    """Runs a world from step to step of its only engine; what happens within a step waits."""

    def __init__(self, world: ClusterWorld, chunk_tokens: int) -> None:
        (self.worker,), (self.job,) = world.workers, world.jobs
        self.world, self.chunk = world, chunk_tokens
        self.made = self.job.trajectories
        self.sizes: dict[int, int] = {}
        for group in self.made.group:
            self.sizes[int(group)] = self.sizes.get(int(group), 0) + 1
        self.out = PlainOutcome()
        self.now = 0.0
        self.arrivals: list[tuple[float, int]] = []  # (ready at, trajectory), of its next turn
        self.turn = [0] * len(self.made.group)
        self.context = [0] * len(self.made.group)
        self.cached = [0] * len(self.made.group)
        self.cache_version = [-1] * len(self.made.group)
        self.version_min = [10**9] * len(self.made.group)
        self.admitted_at = [0] * len(self.made.group)  # the newest version then
        self.started = 0
        self.consumed = 0
        self.batch: list[int] = []
        self.learned_at = _NEVER
        self.ready: list[int] = []  # groups that are complete
        self.void = 0  # batches of which nothing was left
        self.commits: list[tuple[float, float]] = []  # stands still from, has the version at

    # ---- the trainer

    def by_mode(self) -> int:
        """Return how many trajectories the trainer wants to have started."""
        job, versions = self.job, len(self.out.published_ms) + self.void
        taken = versions + (self.learned_at < _NEVER)
        return {
            TrainerMode.ASYNCHRONOUS: len(self.turn),
            TrainerMode.SYNCHRONOUS: job.batch * (versions + 1),
            TrainerMode.ONE_STEP_OFF: job.batch * (taken + 1),
        }[job.mode]

    def admit(self, at: float) -> None:
        gate = self.consumed + (self.job.max_staleness + 1) * self.job.batch
        while self.started < min(gate, self.by_mode(), len(self.turn)):
            heapq.heappush(self.arrivals, (at, self.started))
            self.admitted_at[self.started] = len(self.out.published_ms)
            self.context[self.started] = int(self.made.input_tokens[self.first(self.started)])
            self.started += 1

    def sift(self, at: float) -> None:
        """Throw away what is too old, and groups of which nothing is left."""
        for i, group in enumerate(self.made.group):
            age = len(self.out.published_ms) - self.version_min[i]
            is_waiting = int(group) in self.ready and i not in self.out.staleness
            if is_waiting and age > self.job.max_staleness:
                self.out.staleness[i] = age
                self.consumed += 1
        useful = {int(g) for i, g in enumerate(self.made.group) if i not in self.out.staleness}
        self.ready = [group for group in self.ready if group in useful]
        self.admit(at)

    def learn(self, at: float) -> None:
        """Take a batch, if one is complete."""
        if self.learned_at < _NEVER:
            return
        self.sift(at)
        whole = self.ready[: self.job.batch // max(self.sizes.values())]
        if self.job.mode is not TrainerMode.ASYNCHRONOUS:
            if len(self.out.done_ms) < min(self.by_mode(), len(self.turn)):
                return
            self.void += not whole
        elif sum(self.sizes[g] for g in whole) < self.job.batch:
            return
        if not whole:
            self.admit(at)
            return
        self.ready = self.ready[len(whole) :]
        groups = enumerate(self.made.group)
        self.batch = [i for i, g in groups if int(g) in whole and i not in self.out.staleness]
        for one in self.batch:
            self.out.used_by[one] = len(self.out.published_ms) + 1
            self.out.staleness[one] = len(self.out.published_ms) - self.version_min[one]
        self.learned_at = at + self.job.train_ms
        pauses = self.learned_at + self.worker.update_ms
        self.commits.append((pauses, pauses + self.worker.pause_ms))
        self.admit(at)

    def publish_until(self, at: float) -> None:
        while self.learned_at <= at:
            published = self.learned_at
            self.out.published_ms.append(published)
            self.consumed += len(self.batch)
            self.learned_at = _NEVER
            self.admit(published)
            self.learn(published)

    # ---- the worker

    def version(self, at: float) -> int:
        return sum(1 for _, has in self.commits if has <= at)

    def still_ms(self, begins: float, takes: float) -> float:
        """Return when a step ends that begins then and computes for so long."""
        ends = begins + takes
        for pauses, goes_on in self.commits:
            if goes_on > begins and pauses < ends:
                ends += goes_on - max(pauses, begins)
        return ends

    def may_start_at(self, at: float, trajectory: int) -> float:
        """Return when the worker has weights that are not too old for the trajectory."""
        published = sum(1 for published in self.out.published_ms if published <= at)
        lag_max = min(self.world.settings.worker_lag_max, self.job.max_staleness)
        # So many are learned from before it; those that are done first of all.
        before = max(trajectory, len(self.out.done_ms)) - self.consumed
        before = min(before, self.started - self.consumed - 1)
        oldest = published + before // self.job.batch - self.job.max_staleness
        has = min(self.admitted_at[trajectory], self.version_min[trajectory])
        oldest = max(published - lag_max, oldest if has >= oldest else 0)
        return self.commits[oldest - 1][1] if oldest > 0 else at

    def first(self, trajectory: int) -> int:
        return int(self.made.first_turn[trajectory]) + self.turn[trajectory]

    def run(self) -> PlainOutcome:
        """Return what happened by the time the last version was out."""
        running: list[_Sequence] = []
        self.admit(0.0)
        while len(self.out.published_ms) < self.world.versions:
            self.publish_until(self.now)
            while self.arrivals and self.arrivals[0][0] <= self.now:
                ready, trajectory = heapq.heappop(self.arrivals)
                may_at = max(ready, self.may_start_at(ready, trajectory))
                if may_at <= self.now:
                    running.append(self.start(may_at, trajectory))
                else:
                    heapq.heappush(self.arrivals, (may_at, trajectory))
            if not running:
                following = min(self.learned_at, self.arrivals[0][0] if self.arrivals else _NEVER)
                self.now = following
                continue
            self.now = self.still_ms(self.now, self.step(running))
            self.count(running)
        return self.out

    def start(self, ready: float, trajectory: int) -> _Sequence:
        is_warm = self.cache_version[trajectory] == self.version(ready)
        hit = self.cached[trajectory] if is_warm else 0
        self.cache_version[trajectory] = self.version(ready)
        context, said = self.context[trajectory], self.made.output_tokens[self.first(trajectory)]
        return _Sequence(trajectory, context, context - hit, int(said))

    def step(self, running: list[_Sequence]) -> float:
        """Compute what one step computes, and return how long that takes."""
        times = self.worker.times
        saying = [one for one in running if one.is_saying]
        takes = 0.0
        if saying:
            takes += times.decode_step_ms + times.decode_ms_per_sequence * len(saying)
            context = sum(one.context + one.said for one in saying)
            takes += times.decode_ms_per_context_token * context
        chunk = self.chunk
        for one in running:
            if one.is_saying:
                one.said += 1
                continue
            computed = min(chunk, one.prompt_left)
            one.prompt_left -= computed
            chunk -= computed
        return takes + (self.chunk - chunk) / times.prefill_tokens_per_s * 1000

    def count(self, running: list[_Sequence]) -> None:
        """Let those whose prompt is computed speak, and those who have said all go."""
        for one in list(running):
            if one.is_saying:
                self.out.tokens += 1
                i = one.trajectory
                self.version_min[i] = min(self.version_min[i], self.version(self.now))
            elif one.prompt_left == 0:
                one.is_saying = True
            if one.said == one.left:
                running.remove(one)
                self.end(one)

    def end(self, one: _Sequence) -> None:
        i = one.trajectory
        self.context[i] += one.said
        self.cached[i] = self.context[i]
        place = self.first(i)
        self.turn[i] += 1
        if place + 1 < self.made.first_turn[i + 1]:
            self.context[i] += int(self.made.input_tokens[place + 1])
            heapq.heappush(self.arrivals, (self.now + float(self.made.tool_ms[place]), i))
            return
        self.out.done_ms[i] = self.now
        group = int(self.made.group[i])
        members = [j for j, other in enumerate(self.made.group) if int(other) == group]
        if all(j in self.out.done_ms for j in members):
            self.ready.append(group)
            self.learn(self.now)
