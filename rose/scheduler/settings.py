"""Every knob of the scheduler, with its unit and the reason for its default.

"The drawn scenarios" are those of `bench.drawn`; what they said is in bench/results/drawn-200.json.
"The paper" is ROSE (arXiv 2605.06534).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.scheduler.knobs import KnobRules

_RULES: Final = KnobRules(
    most=1e9,  # Counts and times beyond it are mistakes; below it every sum fits 64 bits.
    integers=frozenset(
        {
            "max_staleness",
            "batch_trajectories",
            "worker_lag_max",
            "attempts_max",
            "turn_window",
            "version_window",
            "reserve_ahead_tokens",
            "burst_prefill_tokens",
            "fair_lead_tokens",
            "mlfq_quantum_tokens",
        }
    ),
    may_be_zero=frozenset(
        {
            "max_staleness",
            "worker_lag_max",
            "recall_grace_ms",
            "retry_ms",
            "urgent_time_weight",
            "urgent_risk_weight",
            "staleness_s_per_version",
            "leave_home_margin_s",
            "hazard_per_s",
            "hold_min_ms",
            "hold_max_ms",
            "flap_window_ms",
            "fair_lead_tokens",
            "requeue_ms",
            "longest_first",
            "tail_seats",
            "tool_ms_prior",
            "cache_wait_ms",
            "move_contexts",
        }
    ),
    bounds={
        "reserve_quantile": lambda quantile: 0 < quantile <= 1,
        "displaced_share": lambda share: 0 < share <= 1,
        "pace_rate": lambda rate: rate < 1,
    },
)


class PlacementPolicy(Enum):
    """Who decides where a turn runs, and which first; the baselines share everything else.

    MLFQ follows the C-MLFQ of Libra (arXiv 2606.03077), which is known here at second hand only:
    an elastic pool, queues of several levels, tools' returns as the signal, no lengths foreseen.
    The widths of the levels and that a return is worth one of them are ours, and so is where a
    turn runs.

    LEAST_LOADED_STICKY leaves a home that has over half as many turns again, and two more, as the
    least loaded worker that could take the turn: a router that never does leaves all turns where
    they rushed after a publication, on the workers that committed first. Two alone, which won in
    pull request 7435 of verl, lose more caches than they spread where engines run many turns.

    What is reserved, recalled and kept from going stale is decided as for all others.
    """

    JOINT = "own time, cost to others, revocation risk and staleness, weighted by urgency"
    ROSE_PUBLISHED = "cache-affine, then least-loaded dedicated, then borrowed with room"
    LEAST_LOADED_STICKY = "home while it has room and at most 2 turns more, then the fewest turns"
    MLFQ = "least served first, a level up after a tool; placed as by LEAST_LOADED_STICKY"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the scheduler may do, and what it believes before it has seen anything.

    Args:
        max_staleness: versions between the start of a trajectory and its use. One is where most
            off-policy corrections stop hurting.
        batch_trajectories: what the trainer takes for one version.
        worker_lag_max: a worker that is more versions behind the newest gets no turns. One lets it
            work while a new version is on its way.
        recall_grace_ms: how long what a worker says of a turn that was taken from it is still
            taken; longer than a report takes to arrive. Each millisecond delays the turn, each
            token that is lost is generated again.
        retry_ms: a turn that left a worker unfinished does not come back under the same lease for
            so long: longer than a doubled report may be late.
        attempts_max: a turn that failed so often is not tried again, and its trajectory dropped.
        stall_ms: a borrowed worker without progress for so long, beyond the time for its prompts,
            has stalled. The paper waits two seconds; among the drawn scenarios, prompts that wait
            for others looked like that, and ten lost nothing.
        wait_max_ms: a turn that waits longer comes before all others, and room is kept for it; a
            turn takes seconds, so one that waits for so long was passed over many times.
        tail_seats: when so many seats for each live trajectory are free, all of them are urgent:
            with two there is room for each, and a choice besides. 0: always, 1e9: never.
        urgent_time_weight: how much more its own time counts for an urgent turn.
        urgent_risk_weight: how much more a revocation counts for an urgent turn.
        staleness_s_per_version: seconds that a fresher worker is worth, per version.
        leave_home_margin_s: a turn leaves the cache it is used to for more than this only: what
            is foreseen is wrong by as much, and a moved prompt is computed again.
        hazard_per_s: how often a borrowed lease is revoked, before anything was seen.
        hazard_prior_s: how many seconds of leases, seen, that belief is worth: a domain's against
            what it saw, and a worker's domain against what the worker saw. Five minutes follow a
            change of load and ride out one burst.
        hazard_window_s: what was seen longer ago fades; load follows the hours of the day.
        hold_min_ms: a lease gets no turns for so long when it was revoked twice within the flap
            window, and for twice as long with each time more: a prompt that is computed and lost
            costs more than the wait.
        hold_max_ms: it never waits longer.
        flap_window_ms: revocations of one worker that are closer than this are flapping.
        exposure_max_s: a borrowed worker gets no turn that would lift what its domain's turns cost
            the survivors, were they all taken back at once, above this. Half a minute of them is
            a small part of what a trainer takes for a version.
        urgent_share_max: of a job's urgent turns, at most so many are in one borrowed domain, in
            (0, 1]. The trainer waits for these.
        burst_prefill_tokens: of prompts that come back after a revocation, a worker computes at
            most so many at once, or one, so that decodes go on between them: about a
            second of an 8B model on one device.
        fair_lead_tokens: how far a job may run ahead of another that waits for the same shared
            device, over its weight. More keeps turns at their caches, less shares more evenly.
        requeue_ms: what a revoked turn waits for its next worker, besides the prompt: it is told in
            milliseconds, and waits for a step of a busy engine or two.
        turn_tokens_prior: mean length of a turn before any has finished; it counts for one turn, so
            a wrong guess is soon forgotten.
        turns_prior: mean turns of a trajectory before any is over; as soon forgotten.
        token_ms_prior: what a token takes, waiting for a worker and prompts included, before a
            turn has finished: a busy engine's step.
        tool_ms_prior: mean time of a tool before one was seen; most tools answer within a second.
        job_weight: a group's own observations against those of all others of its job: these count
            for so many. Two, as members of a group are much alike.
        turn_window: turns, tools and trajectories that predictions remember; enough to be steady,
            few enough to follow a policy that learns to be brief.
        version_window: intervals between versions that their mean remembers.
        reserve_quantile: the part of turns that stay within what is reserved for them at first; 1
            reserves all that a turn may say. When one grows beyond it and its worker has no room,
            the turn there that is cheapest to move goes elsewhere.
        reserve_ahead_tokens: a reservation stays so far ahead of what a turn is known to have
            said: more than it says until another's Stop has freed room for it. 64 steps take more
            than a second.
        longest_first: seconds of waiting that each second left of a trajectory is worth in the
            queue, twice that for the most urgent. One lets the longest of them begin first, and a
            short one wait no longer than the longest takes. 0 is first come, first served.
        pace_rate: how far a turn that took longer or shorter than its worker's figures say moves
            what is believed of that worker's pace, in [0, 1): of what serving leaves of it, and of
            whatever else the figures do not say. 0 believes the figures.
        displaced_share: of trajectories, so many may lose a cache for want of room, in (0, 1]; with
            more of them fewer are admitted, with less more. Contexts grow: a batch that fits at its
            start may not fit half an hour later, and computes the same again and again. A fifth
            lost the least among drawn scenarios. 1 admits all that staleness allows.
        cache_wait_ms: for so long after it was queued a turn waits rather than push out the cache
            of another, except at its warm home: whoever comes back for it would push out the next.
            Only JOINT waits. The longer the better, among drawn scenarios; four minutes is where
            the gain of longer ones is small. 0: it never waits.
        move_contexts: until it has starved, a turn leaves a warm cache only for a worker that lends
            so many mean final contexts for each trajectory that lives there, this one included.
            Contexts grow, and some to twice the mean; where they do not fit, each turn pushes out
            the next one's cache. 0: it moves anywhere.
        mlfq_quantum_tokens: what a trajectory may say in all before MLFQ puts it a level lower;
            each further level takes as much as all before. A few turns of a short trajectory: with
            less all are soon low, with more the long ones are not told apart.
    """

    max_staleness: int = 1
    batch_trajectories: int = 8
    worker_lag_max: int = 1
    recall_grace_ms: float = 200.0
    retry_ms: float = 500.0
    attempts_max: int = 3
    stall_ms: float = 10_000.0
    wait_max_ms: float = 30_000.0
    tail_seats: float = 2.0
    urgent_time_weight: float = 1.0
    urgent_risk_weight: float = 1.0
    staleness_s_per_version: float = 0.5
    leave_home_margin_s: float = 0.3
    hazard_per_s: float = 1 / 60
    hazard_prior_s: float = 300.0
    hazard_window_s: float = 3600.0
    hold_min_ms: float = 1000.0
    hold_max_ms: float = 30_000.0
    flap_window_ms: float = 10_000.0
    exposure_max_s: float = 30.0
    urgent_share_max: float = 0.75
    burst_prefill_tokens: int = 32_768
    fair_lead_tokens: int = 16_384
    requeue_ms: float = 100.0
    turn_tokens_prior: float = 128.0
    turns_prior: float = 4.0
    token_ms_prior: float = 30.0
    tool_ms_prior: float = 1000.0
    job_weight: float = 2.0
    turn_window: int = 256
    version_window: int = 8
    reserve_quantile: float = 0.9
    reserve_ahead_tokens: int = 64
    longest_first: float = 1.0
    pace_rate: float = 0.1
    displaced_share: float = 0.2
    cache_wait_ms: float = 240_000.0
    move_contexts: float = 2.0
    mlfq_quantum_tokens: int = 1024

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            InvalidArgument: a knob is out of its range; the sentence names it.
        """
        _RULES.check(self)
