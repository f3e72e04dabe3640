"""Where a turn runs, the plain way: look at every worker, take the best."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from rose.scheduler import PlacementPolicy
from rose.scheduler.worker import WorkerKind


@dataclass
class PlainPace:
    """How long turns took and how long was foreseen; both fade."""

    took_s: float = 10.0
    foreseen_s: float = 10.0

    def observe(self, took_s: float, foreseen_s: float, rate: float) -> None:
        self.took_s += rate * (took_s - self.took_s)
        self.foreseen_s += rate * (foreseen_s - self.foreseen_s)

    def ratio(self) -> float:
        return self.took_s / self.foreseen_s


@dataclass
class PlainWorker:
    number: int
    kind: WorkerKind
    seats: int
    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float
    decode_ms_per_context_token: float
    version: int
    epoch: int = 0
    kv_tokens: int = 0  # 0 without a lease
    needs: dict[int, int] = field(default_factory=dict)  # of the turns it holds, by trajectory
    backlog: dict[int, int] = field(default_factory=dict)  # prompts it has not computed yet
    caches: dict[int, int] = field(default_factory=dict)  # of idle ones, the oldest first
    commit_s: float = 0.0  # from the news of a version to its commit here, as seen last
    pace: PlainPace = field(default_factory=PlainPace)
    slowness: float = 1.0  # how many times as long as its figures say, against all others

    def left(self) -> int:
        return self.kv_tokens - sum(self.needs.values())

    def forget(self) -> None:
        """Let go of the oldest caches, until turns have what they need."""
        while sum(self.caches.values()) > max(0, self.left()):
            del self.caches[next(iter(self.caches))]

    def foreseen_s(self) -> tuple[float, float]:
        """Return the wait of the turn that came last, and what each of its tokens takes."""
        wait = 1 / self.prefill_tokens_per_s * sum(self.backlog.values())
        return wait, (
            self.decode_step_ms / 1000
            + self.decode_ms_per_sequence / 1000 * len(self.needs)
            + self.decode_ms_per_context_token / 1000 * sum(self.needs.values())
        )

    def observe_pace(self, took_s: float, foreseen_s: float, rate: float, mean: PlainPace) -> None:
        took_s = min(16.0 * foreseen_s, max(0.25 * foreseen_s, took_s))
        self.pace.observe(took_s, foreseen_s, rate)
        mean.observe(took_s, foreseen_s, rate / 4)
        self.slowness = min(16.0, max(0.25, self.pace.ratio() / mean.ratio()))


@dataclass
class PlainTurn:
    need_tokens: int
    prompt_tokens: int
    expected_tokens: float
    urgency: float
    version_min: int = 0  # the oldest weights that gave a token of the trajectory
    home: int | None = None  # the worker that had the trajectory last
    cached_tokens: int = 0  # of the prompt, by home; 0 when it has forgotten them
    avoid: int | None = None
    spares_caches: bool = False  # those of workers other than a warm home
    end_tokens: float = 0.0  # what contexts come to, in the mean


def choose(
    policy: PlacementPolicy,
    workers: list[PlainWorker],
    turn: PlainTurn,
    *,
    published: int,
    since_published_s: float,
    settings: SimpleNamespace,
) -> int | None:
    """Return the number of the best worker that can take the turn now, or None."""
    roomy = [
        worker
        for worker in sorted(workers, key=lambda worker: worker.number)
        if worker.kv_tokens > 0
        and len(worker.needs) < worker.seats
        and turn.need_tokens <= worker.left()
        and worker.number != turn.avoid
    ]
    floor = published - settings.worker_lag_max
    # It is learned from in the next version: what is older than this would be thrown away then.
    oldest = published - settings.max_staleness
    if turn.version_min >= oldest:
        floor = max(floor, oldest)
    if policy is PlacementPolicy.JOINT:
        can_go_home = any(
            worker.version >= floor and worker.kv_tokens >= turn.need_tokens
            for worker in workers
            if worker.number == turn.home != turn.avoid
        )
        is_kept = can_go_home and turn.cached_tokens > 0
        roomy = [one for one in roomy if has_room(one, turn, settings, is_kept=is_kept)]
    able = [worker for worker in roomy if worker.version >= floor]
    home = next((worker for worker in able if worker.number == turn.home), None)
    if policy is PlacementPolicy.JOINT:

        def cost(worker: PlainWorker) -> float:
            return cost_s(worker, turn, published=published, settings=settings)

        best = first_least(able, cost)
        is_warm = home is not None and best is not None and turn.cached_tokens > 0
        if is_warm and cost(home) - cost(best) <= settings.leave_home_margin_s:
            best = home
        for worker in roomy:
            wait_s = worker.commit_s - since_published_s
            if best is None or worker.version >= floor or wait_s <= 0:
                continue
            # It will have the newest version, so long from now, and no cache of older ones.
            renewed, cold = replace(worker, version=published), replace(turn, cached_tokens=0)
            soon = cost_s(renewed, cold, published=published, settings=settings)
            if soon + (1 + settings.urgent_time_weight * turn.urgency) * wait_s < cost(best):
                return None
    elif policy is PlacementPolicy.ROSE_PUBLISHED:
        dedicated = [worker for worker in able if worker.kind is WorkerKind.DEDICATED]
        best = home if turn.cached_tokens > 0 else None
        best = best or first_least(dedicated, load) or first_least(able, load)
    else:
        best = first_least(able, load)
        if home is not None and best is not None and load(home) <= 1.5 * load(best) + 2:
            best = home
    return None if best is None else best.number


def has_room(
    worker: PlainWorker, turn: PlainTurn, settings: SimpleNamespace, *, is_kept: bool
) -> bool:
    """Return whether JOINT lets a turn run where there is room.

    Args:
        worker: with room.
        turn: that wants it.
        settings: what it goes by.
        is_kept: whether the turn has a warm home that could take it, were there room.
    """
    if turn.cached_tokens > 0 and worker.number == turn.home:
        return True
    spares_caches = turn.spares_caches and turn.avoid is None
    if spares_caches and turn.need_tokens > worker.left() - sum(worker.caches.values()):
        return False
    if not is_kept:
        return True
    each = settings.move_contexts * max(turn.end_tokens, turn.prompt_tokens)
    return (len(worker.needs) + len(worker.caches) + 1) * each <= worker.kv_tokens


def load(worker: PlainWorker) -> int:
    return len(worker.needs)


def first_least(
    workers: list[PlainWorker], cost: Callable[[PlainWorker], float]
) -> PlainWorker | None:
    return min(workers, key=cost, default=None)


def cost_s(
    worker: PlainWorker, turn: PlainTurn, *, published: int, settings: SimpleNamespace
) -> float:
    """Return seconds: what JOINT takes the least of."""
    n, u = len(worker.needs), turn.urgency
    prefill_s = 1 / worker.prefill_tokens_per_s
    sequence_s = worker.decode_ms_per_sequence / 1000
    missing = turn.prompt_tokens - (turn.cached_tokens if worker.number == turn.home else 0)
    context_s = worker.decode_ms_per_context_token / 1000
    context = turn.prompt_tokens + turn.expected_tokens / 2  # it grows
    step_s = (
        worker.decode_step_ms / 1000
        + sequence_s * (n + 1)
        + context_s * (sum(worker.needs.values()) + context)
    )
    own = worker.slowness * (
        (sum(worker.backlog.values()) + missing) * prefill_s + turn.expected_tokens * step_s
    )
    slower_s = (sequence_s + context_s * context) * turn.expected_tokens
    others = worker.slowness * n * (slower_s + missing * prefill_s)
    is_borrowed = worker.kind is WorkerKind.BORROWED
    revocations = settings.hazard_per_s * own if is_borrowed else 0.0
    redo = turn.prompt_tokens * prefill_s + settings.requeue_ms / 1000
    risk = revocations / (1 + revocations) * redo
    gap = published - worker.version
    return (
        (1 + settings.urgent_time_weight * u) * own
        + others
        + (1 + settings.urgent_risk_weight * u) * risk
        + settings.staleness_s_per_version * gap
    )


def urgency(
    *, lag: float, versions_old: int, live: int, free_seats: int, settings: SimpleNamespace
) -> float:
    """Return 0 in bulk and 1 in the tail, which is when there are seats for all and more."""
    if settings.tail_seats * live < free_seats:
        return 1.0
    return min(1.0, max(0.0, lag, versions_old / (settings.max_staleness + 1)))
