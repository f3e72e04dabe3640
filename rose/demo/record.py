"""What an experiment measured, in full; `rose.demo.summary` turns it into numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rose.demo.schemes import Scheme
from rose.slo import SLO

ARMS: Final = ("alone", "alone_again", "share_all", "rose")
"""Of the demo, in the order of its report. `alone_again` repeats `alone`: the A/A control."""

WORKERS: Final = ("borrowed", "dedicated")
"""Where a turn can run: in the gaps of serving, or on an engine of its own."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One serving request that was answered.

    Args:
        arrival_s: on the clock of the run.
        ttft_ms: from arrival to the first token.
        tpot_ms: mean time of each later token; None when the output has one token.
        late_gaps: times from a token to the next that were over the target.
    """

    arrival_s: float
    ttft_ms: float
    tpot_ms: float | None
    output_tokens: int
    late_gaps: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """One arm on one piece of the trace; request i of a round is the same one in every arm.

    Rollouts with the device to themselves are a slice without requests.

    Args:
        round: pairs the arms at one load.
        start_s: on the clock of the run.
        end_s: when the last request was answered.
        requests: in the order of their arrival.
        serving_busy_s: time in which a serving step ran.
        rollout_tokens: tokens that rollouts generated.
        load: of serving, as it was asked for.
        segment_ms: length of each rollout segment (the work between two gates); None without gates.
        blocked_ms: for each serving step that found a segment running, how long it waited.
        pauses: how often a closed gate stopped rollouts.
        chunk_ms: serving steps with a full chunk of prefill, where steps are timed.
        decode_ms: serving steps without prefill, likewise.
        is_void: somebody else used the device meanwhile, so nothing is judged by this slice.
    """

    arm: str
    round: int
    start_s: float
    end_s: float
    requests: tuple[Answered, ...]
    serving_busy_s: float
    rollout_tokens: int
    load: float = 0.0
    segment_ms: tuple[float, ...] | None = None
    blocked_ms: tuple[float, ...] = ()
    pauses: int = 0
    chunk_ms: tuple[float, ...] = ()
    decode_ms: tuple[float, ...] = ()
    is_void: bool = False

    @property
    def seconds(self) -> float:
        """From the start to the last answer."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long serving's steps took by themselves, by shape.

    Args:
        chunk_ms: with a full chunk of prefill.
        decode_ms: without prefill.
    """

    chunk_ms: tuple[float, ...]
    decode_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lending:
    """What the device said about its refusals over the slices of the arm `rose`.

    Args:
        refusals: quanta refused, by reason.
        refused_s: seconds for which rollouts that wanted to run were refused, by reason.
        granted_s: time with a quantum granted.
        binding: the term that the last refusal failed at: `shape`, `predicted_ms`, `bound_ms`,
            `delay_ms`, `target`, `target_ms` and `sentence`; None without one.
    """

    refusals: Mapping[str, int]
    refused_s: Mapping[str, float]
    granted_s: float
    binding: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Slices of a run: those judged, those void, and those of the latter that were repeated."""

    judged: int
    void: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What the second implementation says about the certificates of one arm.

    Args:
        granted: certificates in the log, of memory and of compute.
        verified: those that hold.
        violations: those that do not.
        load: of serving; None when one log covers all loads.
    """

    arm: str
    granted: int
    verified: int
    violations: int
    load: float | None = None


@dataclass(frozen=True, slots=True)
class Revocation:
    """Slabs taken back from rollouts under pressure.

    Args:
        latency_ms: from the demand to the last slab.
        aborted_steps: rollout steps that were aborted at their gate for it.
    """

    latency_ms: float
    aborted_steps: int


@dataclass(frozen=True, slots=True)
class SliceTimeline:
    """What happened in one slice of the arm `rose`; all times in seconds on one clock.

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
        version: its number; the one before, where the digest differs.
    """

    worker: str
    at_s: float
    pause_ms: float
    is_match: bool
    version: int = 0


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
        turn: number of the turn in it, from 0.
        worker: one of `WORKERS`.
        start_s: when the worker began it, on the clock of the run.
        end_s: when its last token was there, or the worker gave it up.
        tokens: generated in this part.
        is_resumed: whether another worker, or an earlier life of this one, began the turn.
        number: of the worker.
    """

    trajectory: int
    turn: int
    worker: str
    start_s: float
    end_s: float
    tokens: int
    is_resumed: bool
    number: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoryCounts:
    """Where every trajectory of a run went.

    Args:
        started: all of them.
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
    dropped: int
    stale: int = 0
    turns_borrowed: int = 0
    turns_dedicated: int = 0
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class CircleRecord:
    """What the circle of generating, learning and publishing did; one clock with the slices.

    Args:
        versions: in the order of publication.
        turns: in the order of their start.
        trajectories: how many went where.
        staleness: for each trajectory that the trainer took up, whether it learnt from it or not,
            versions between its first token and the batch.
        spans: (from, to) of each interval in which the borrowed worker had memory.
        incidents: (time, one sentence): a process died and came back, a commit was undone.
        measured_s: how long the circle ran.
        published: versions that the trainer published, as it counted them.
        committed_borrowed: versions that the borrowed worker took.
        committed_dedicated: versions that the dedicated worker took.
        sent: (bytes of chunks that left the trainer, bytes of whole weights to every worker
            instead), as the trainer counted them; None if it never said.
        relayed: (bytes that crossed from the trainer to the relay, bytes from there to the
            workers), as the relay counted them; None where there was no relay.
    """

    versions: tuple[VersionRecord, ...]
    turns: tuple[TurnRecord, ...]
    trajectories: TrajectoryCounts
    staleness: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    incidents: tuple[tuple[float, str], ...]
    measured_s: float
    published: int = 0
    committed_borrowed: int = 0
    committed_dedicated: int = 0
    sent: tuple[int, int] | None = None
    relayed: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """What the broker decided about the device once.

    Args:
        move: name of a `rose.scheduler.broker.Move`.
        cap_bytes: the most that the device lends from then on.
        lent_bytes: on loan at that moment.
        why: one sentence.
    """

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
class Plan:
    """What a run was asked for.

    Args:
        schemes: the arms, in the order of the report.
        loads: how busy serving is, ascending.
        seed: of traffic, prompts, sampling and noise.
        settings: all that the user asked for, for the report.
        command: the command line that repeats it.
        machine: what runs it.
    """

    schemes: tuple[Scheme, ...]
    loads: tuple[float, ...]
    seed: int
    settings: Mapping[str, object]
    command: str
    machine: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run, or as much of it as there was before it was interrupted.

    Args:
        plan: what was asked for.
        slices: every arm of every round at every load, those that are void included.
        solo: rollouts with the device to themselves, in every round.
        slo: serving's targets.
        slo_from: "flags" or "calibration".
        complete: False when it was interrupted.
        audits: of the arms that leave certificates.
        is_virtual: modelled in virtual time, not measured on real engines.
        calibration: serving's steps before any arm ran.
        signal_ms: from closing the gate to the borrower's seeing it, as certificates reckon.
        slice_counts: how many were judged.
        setup_s: from the start of the command to the first slice.
        lending: what the device refused in the arm `rose`; like all that follows, of the demo.
        revocations: in the order of time.
        timeline: of one slice of the arm `rose`.
        circle: of trajectories and weights; None when the run closed none.
        broker: of how much the device lent; None where nobody capped it.
    """

    plan: Plan
    slices: tuple[Slice, ...]
    solo: tuple[Slice, ...]
    slo: SLO
    slo_from: str
    complete: bool
    audits: tuple[Audit, ...] = ()
    is_virtual: bool = False
    calibration: StepTimes = StepTimes((), ())
    signal_ms: float = 0.0
    slice_counts: SliceCounts = SliceCounts(0, 0, 0)
    setup_s: float = 0.0
    lending: Lending = Lending({}, {}, 0.0, None)
    revocations: tuple[Revocation, ...] = ()
    timeline: SliceTimeline = SliceTimeline((), (), ())
    circle: CircleRecord | None = None
    broker: BrokerRecord | None = None
