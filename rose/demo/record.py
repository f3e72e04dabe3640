"""What a run of the demo measured, in full; `rose.demo.report` turns it into numbers and pages."""

from dataclasses import dataclass
from typing import Final

ARMS: Final = ("alone", "alone_again", "share_all", "rose")
"""In the order of the report. `alone_again` repeats `alone`: the A/A control."""

WORKERS: Final = ("borrowed", "dedicated")
"""Where a turn can run: in the gaps of serving, or on an engine of its own."""


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One serving request that was answered.

    Args:
        arm: one of `ARMS`.
        window: the arms of one window replay the same requests.
        arrival_s: on the clock of the run.
        ttft_ms: from arrival to the first token.
        tpot_ms: mean time of each later token; None when the output has one token.
        output_tokens: tokens generated.
        gaps_ms: from each token to the next, in their order.
    """

    arm: str
    window: int
    arrival_s: float
    ttft_ms: float
    tpot_ms: float | None
    output_tokens: int
    gaps_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One arm in one window.

    Args:
        arm: one of `ARMS`.
        window: pairs the arms.
        start_s: on the clock of the run.
        end_s: when the last request of the window was answered, or the window was cut.
        requests: those answered.
        serving_busy_s: time in which a serving step ran.
        rollout_tokens: tokens that rollouts generated.
        rollout_busy_s: time in which a segment of rollouts ran; None where there are no segments.
    """

    arm: str
    window: int
    start_s: float
    end_s: float
    requests: tuple[RequestTiming, ...]
    serving_busy_s: float
    rollout_tokens: int
    rollout_busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Revocation:
    """Slabs taken back from rollouts under pressure.

    Args:
        at_s: on the clock of the run.
        slabs: how many came back.
        latency_ms: from the demand to the last slab.
        aborted_steps: rollout steps that were aborted at their gate for it.
    """

    at_s: float
    slabs: int
    latency_ms: float
    aborted_steps: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened in one window of the arm `rose`; all times in seconds on one clock.

    Args:
        gate_open: (from, to) of each interval in which rollouts could run.
        arrivals_s: serving requests.
        slabs: (time, slabs of serving, of rollouts, of nobody), after each change.
    """

    gate_open: tuple[tuple[float, float], ...]
    arrivals_s: tuple[float, ...]
    slabs: tuple[tuple[float, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One worker took one version of the weights.

    Args:
        worker: one of `WORKERS`.
        at_s: when the worker generated with the version, on the clock of the run.
        pause_ms: how long its generation stood still for it.
        is_match: whether the digest of what it holds is the publisher's.
    """

    worker: str
    at_s: float
    pause_ms: float
    is_match: bool


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version that the trainer published.

    Args:
        n: number of the version; rises with each publication.
        published_s: when the first worker heard of it, on the clock of the run.
        density: share of the parameters that changed, 0 to 1.
        bytes_sent: what went to one worker.
        dense_bytes: what the whole weights would have been.
        commits: in the order of time; fewer than workers when the run ended first.
    """

    n: int
    published_s: float
    density: float
    bytes_sent: int
    dense_bytes: int
    commits: tuple[CommitRecord, ...]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of one trajectory, or one part of a turn that was moved.

    Args:
        trajectory: number of the trajectory.
        turn: number of the turn in it, from 0.
        worker: one of `WORKERS`.
        start_s: when the worker began it, on the clock of the run.
        end_s: when its last token was there, or the worker gave it up.
        tokens: generated in this part.
        is_resumed: whether another worker, or an earlier life of this one, began the turn.
    """

    trajectory: int
    turn: int
    worker: str
    start_s: float
    end_s: float
    tokens: int
    is_resumed: bool


@dataclass(frozen=True, slots=True)
class TrajectoryCounts:
    """Where every trajectory of a run went.

    Args:
        started: all of them.
        finished: those with a reward.
        in_flight: neither finished nor dropped when the run ended.
        resumed: turns that more than one worker had a part in.
        lost: those that nobody can account for; must be 0.
        stale: finished, but too many versions old to be learnt from.
        passed_over: finished, but the trainer had no time to learn from them.
        dropped: given up on purpose, with a reason.
        turns_borrowed: turns that ended in the gaps of serving.
        turns_dedicated: turns that ended on an engine of their own.
    """

    started: int
    finished: int
    in_flight: int
    resumed: int
    lost: int
    stale: int
    dropped: int
    turns_borrowed: int
    turns_dedicated: int
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class CircleRecord:
    """What the circle of generating, learning and publishing did; one clock with the windows.

    Args:
        versions: in the order of publication.
        turns: in the order of their start.
        rewards: (time, mean reward of a batch, version that the batch led to).
        trajectories: how many went where.
        staleness: for each trajectory that the trainer took up, whether it learnt from it or not,
            versions between its first token and the batch.
        spans: (from, to) of each interval in which the borrowed worker had memory.
        incidents: (time, one sentence): a process died and came back, a commit was undone.
        measured_s: how long the circle ran.
        sent: (bytes of chunks that left the trainer, bytes of whole weights to every worker
            instead), as the trainer counted them; None if it never said.
        relayed: (bytes that crossed from the trainer to the relay, bytes from there to the
            workers), as the relay counted them; None where there was no relay.
    """

    versions: tuple[VersionRecord, ...]
    turns: tuple[TurnRecord, ...]
    rewards: tuple[tuple[float, float, int], ...]
    trajectories: TrajectoryCounts
    staleness: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    incidents: tuple[tuple[float, str], ...]
    measured_s: float
    sent: tuple[int, int] | None = None
    relayed: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """What the broker decided about the device once.

    Args:
        at_s: on the clock of the run.
        move: name of a `rose.scheduler.broker.Move`.
        cap_bytes: the most that the device lends from then on.
        lent_bytes: on loan at that moment.
        why: one sentence.
    """

    at_s: float
    move: str
    cap_bytes: int
    lent_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """What the broker of a run decided.

    Args:
        pool_bytes: of the device, which serving and rollouts share.
        decisions: in the order of time.
    """

    pool_bytes: int
    decisions: tuple[DecisionRecord, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run, or as much of it as there was before it was interrupted.

    Args:
        windows: every arm of every window.
        rollout_alone_tokens_per_s: rate of the rollouts with the device to themselves.
        slo_ttft_ms: target of the time to the first token.
        slo_tpot_ms: target of the time per later token.
        blocked_by_rollout_ms: for each serving step that found a segment running, its wait.
        segment_ms: length of each rollout segment (the work between two gates) of the windows.
        certificates_granted: grants in the log, of memory and of compute.
        certificates_verified: those that the second implementation accepts.
        certificate_violations: those that it rejects.
        revocations: in the order of time.
        pauses: how often a closed gate stopped rollouts.
        timeline: of one window of the arm `rose`.
        machine: what ran it.
        settings: what it was asked for.
        seed: of traffic, prompts and sampling.
        command: the command line that repeats it.
        complete: False when it was interrupted.
        circle: of trajectories and weights; None when the run closed none.
        broker: of how much the device lent; None where nobody capped it.
    """

    windows: tuple[WindowRecord, ...]
    rollout_alone_tokens_per_s: float
    slo_ttft_ms: float
    slo_tpot_ms: float
    blocked_by_rollout_ms: tuple[float, ...]
    segment_ms: tuple[float, ...]
    certificates_granted: int
    certificates_verified: int
    certificate_violations: int
    revocations: tuple[Revocation, ...]
    pauses: int
    timeline: Timeline
    machine: dict[str, object]
    settings: dict[str, object]
    seed: int
    command: str
    complete: bool
    circle: CircleRecord | None = None
    broker: BrokerRecord | None = None
