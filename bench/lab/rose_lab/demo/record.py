"""All measurements of an experiment; `rose_lab.demo.summary` computes the report from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rose.slo import SLO
from rose_lab.broker import Decision
from rose_lab.demo.schemes import Scheme

ARMS: Final = ("alone", "alone_again", "share_all", "rose")
"""The demo's arms in report order. `alone_again` repeats `alone`: the A/A control."""

WORKERS: Final = ("borrowed", "dedicated")
"""Kinds of rollout workers: on memory and time that serving lends, or on a separate engine."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answered serving request.

    Args:
        arrival_s: arrival time on the run's clock.
        ttft_ms: time from arrival to the first token.
        tpot_ms: mean time per later token; None for a single-token output.
        late_gaps: number of gaps between tokens that exceed the TPOT target.
    """

    arrival_s: float
    ttft_ms: float
    tpot_ms: float | None
    output_tokens: int
    late_gaps: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """One arm on one piece of the trace; request i of a round is the same in every arm.

    A slice of rollouts alone has no requests.

    Args:
        round: round number; arms are compared by their slices of the same round and load.
        start_s: start, on the run's clock.
        end_s: time of the last answer.
        requests: answered requests in arrival order.
        serving_busy_s: time in serving steps.
        rollout_tokens: generated tokens of rollouts.
        load: requested load of serving.
        segment_ms: duration of each rollout segment (work between two gates); None without gates.
        blocked_ms: wait of each serving step that found a segment running.
        pauses: number of times that a closed gate stopped rollouts.
        chunk_ms: durations of serving steps with a full prefill chunk; empty if no step is timed.
        decode_ms: durations of serving steps without prefill; empty if no step is timed.
        is_void: whether foreign processes used the device; a void slice is not judged.
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
        """Time from the start to the last answer."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Durations of serving's steps without rollouts.

    Args:
        chunk_ms: steps with a full prefill chunk.
        decode_ms: steps without prefill.
    """

    chunk_ms: tuple[float, ...]
    decode_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LendingRecord:
    """Grants and refusals in the slices of the arm `rose`.

    Args:
        refusals: refused quanta by reason.
        refused_s: time for which ready rollouts were refused, by reason.
        granted_s: time with a granted quantum.
        binding: the condition that failed in the last refusal, with the keys `shape`,
            `predicted_ms`, `bound_ms`, `delay_ms`, `target`, `target_ms` and `sentence`; None
            without a refusal.
    """

    refusals: Mapping[str, int]
    refused_s: Mapping[str, float]
    granted_s: float
    binding: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Numbers of judged, void and repeated slices; each repeated slice also counts as void."""

    judged: int
    void: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Independent check of one arm's certificates.

    Args:
        granted: certificates in the log, for memory and compute.
        verified: valid certificates.
        violations: invalid certificates.
        load: load of serving; None if the log covers all loads.
    """

    arm: str
    granted: int
    verified: int
    violations: int
    load: float | None = None


@dataclass(frozen=True, slots=True)
class RevocationRecord:
    """One revocation of slabs from rollouts, because serving needed memory.

    Args:
        latency_ms: time from the request for the slabs to the return of the last slab.
        aborted_steps: rollout steps aborted at their gate.
    """

    latency_ms: float
    aborted_steps: int


@dataclass(frozen=True, slots=True)
class SliceTimeline:
    """Timeline of one slice of the arm `rose`; all times in seconds on one clock.

    Args:
        gate_open: (from, to) of each interval in which rollouts could run.
        arrivals_s: arrival times of serving requests.
        slabs: (time, serving's slabs, rollouts' slabs, free slabs) after each change.
    """

    gate_open: tuple[tuple[float, float], ...]
    arrivals_s: tuple[float, ...]
    slabs: tuple[tuple[float, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One worker's commit of one weight version.

    Args:
        worker: one of `WORKERS`.
        at_s: time from which the worker generates with the version, on the run's clock.
        pause_ms: pause of the worker's generation.
        is_match: whether the worker's digest equals the publisher's.
        version: committed version; the previous version if the digests differ.
    """

    worker: str
    at_s: float
    pause_ms: float
    is_match: bool
    version: int = 0


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One published weight version.

    Args:
        n: version number; rises with each publication.
        published_s: time when its first manifest arrived at a receiver, on the run's clock.
        density: share of changed parameters, 0 to 1.
        bytes_sent: bytes sent to one worker.
        dense_bytes: size of the whole weights.
        commits: workers' commits in time order; the run may end before all workers commit.
    """

    n: int
    published_s: float
    density: float
    bytes_sent: int
    dense_bytes: int
    commits: tuple[CommitRecord, ...]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of one trajectory, or one worker's part of a turn that moved.

    Args:
        turn: index of the turn within the trajectory, from 0.
        worker: one of `WORKERS`.
        start_s: start on this worker, on the run's clock.
        end_s: time of the last token, or of the turn's recall from the worker.
        tokens: tokens generated in this part.
        is_resumed: whether the turn already had generated tokens when this part began.
        number: worker number.
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
    """Numbers of a run's trajectories and turns, by outcome.

    Args:
        started: all trajectories.
        in_flight: neither finished nor dropped when the run ended.
        resumed: turns that ran on more than one worker.
        lost: unaccounted trajectories; must be 0.
        stale: finished, but too many versions old for training.
        passed_over: finished, but not learned from, because the trainer had enough others or the
            rewards of their group were equal.
        dropped: given up on purpose, with a reason.
        turns_borrowed: turns that ended on the borrowed worker.
        turns_dedicated: turns that ended on a dedicated worker.
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
class RlLoopRecord:
    """Record of the RL loop (generate, learn, publish), on the clock of the slices.

    Args:
        versions: published versions in order.
        turns: turns in start order.
        trajectories: outcome counts.
        staleness: age of each trajectory when the trainer took or dropped it, in versions since its
            oldest token.
        spans: (from, to) of each interval in which the borrowed worker had memory.
        incidents: (time, sentence), such as a restarted process or an undone commit.
        measured_s: duration of the loop.
        published: number of published versions, counted by the trainer.
        committed_borrowed: number of versions committed by the borrowed worker.
        committed_dedicated: number of versions committed by dedicated workers.
        sent: (chunk bytes that the trainer sent, bytes that whole weights would have taken
            instead), counted by the trainer; None if the trainer reported nothing.
        relayed: (bytes from trainer to relay, bytes from relay to workers), counted by the relay;
            None without a relay.
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
class BrokerRecord:
    """All decisions of a run's broker.

    Args:
        pool_bytes: size of the device's pool, which serving and rollouts share.
        decisions: (decision, bytes on loan at that moment) in time order.
    """

    pool_bytes: int
    decisions: tuple[tuple[Decision, int], ...]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The requested arms, loads and settings of a run.

    Args:
        schemes: arms in report order.
        loads: serving's loads, ascending.
        seed: seed of traffic, prompts, sampling and noise.
        settings: all user settings, for the report.
        command: command line that repeats the run.
        machine: description of the machine.
    """

    schemes: tuple[Scheme, ...]
    loads: tuple[float, ...]
    seed: int
    settings: Mapping[str, object]
    command: str
    machine: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, complete or up to its interruption.

    Only `rose demo` fills the fields from `lending` on.

    Args:
        slices: one slice for each arm, round and load; void slices are included.
        solo: slices of rollouts alone, without void slices.
        slo: serving's targets.
        slo_from: "flags" or "calibration".
        complete: False after an interrupt.
        audits: one per certificate log.
        is_virtual: whether the run was simulated in virtual time, not measured on real engines.
        calibration: serving's step times before any arm ran.
        signal_ms: certificates' bound on the delay until the borrower sees a closed gate.
        setup_s: time from the start of the command to the first slice.
        lending: grants and refusals in the arm `rose`.
        revocations: revocations in time order.
        timeline: one slice of the arm `rose`.
        rl_loop: record of the RL loop; None without an RL loop.
        broker: the broker's decisions; None without a broker.
    """

    plan: RunPlan
    slices: tuple[Slice, ...]
    solo: tuple[Slice, ...]
    slo: SLO
    slo_from: str
    complete: bool
    audits: tuple[Audit, ...] = ()
    is_virtual: bool = False
    calibration: StepSamples = StepSamples((), ())
    signal_ms: float = 0.0
    slice_counts: SliceCounts = SliceCounts(0, 0, 0)
    setup_s: float = 0.0
    lending: LendingRecord = LendingRecord({}, {}, 0.0, None)
    revocations: tuple[RevocationRecord, ...] = ()
    timeline: SliceTimeline = SliceTimeline((), (), ())
    rl_loop: RlLoopRecord | None = None
    broker: BrokerRecord | None = None
