"""The experiment behind `rose demo`: targets of the machine, then arms in short slices."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.demo.bench import Alone, Bench, BenchSettings, bench, on_device_cores, serving_alone
from rose.demo.foreign import children, read_core_use, why_foreign
from rose.demo.progress import Phases
from rose.demo.record import ARMS, CircleRecord, RunRecord, Slice, SliceCounts, Solo
from rose.demo.slices import Slices, WhyVoid, in_turn
from rose.demo.targets import Calibration, choose_targets, feasibility
from rose.demo.timeline import read_timeline
from rose.engines.transformers import Model
from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.slo.verify import verify_log
from rose.traces import Trace

# Pausing and resuming the borrowed worker hands its turns back: much shorter slices measure that.
_SLICE_S: Final = 6.0
_SLICE_QUICK_S: Final = 4.0
_SOLO_S: Final = (("share_all", 1.5), ("rose", 3.0))
_WARM_UP_S: Final = 2.0
_CALIBRATION_S: Final = 8.0
# Twelve rounds take five and a half minutes; setting up and repeating fit into the other three.
_ROUNDS: Final = 12
_ROUNDS_QUICK: Final = 2
_SPARE_SHARE: Final = 0.25
_INTERIM_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is run.

    Args:
        serving_model: answers the trace.
        rollout_model: generates in the slack.
        trace: of lengths that serving accepts; its rate does not matter.
        load: share of the device's measured capacity.
        is_quick: a look, not a measurement.
        ttft_ms: serving's target; None for a multiple of what serving alone takes.
        tpot_ms: likewise.
        bench: how the engines are built.
        settings: what the user asked for, for the report.
        command: the command line that repeats it.
        machine: what runs it.
    """

    serving_model: Model
    rollout_model: Model
    trace: Trace
    load: float
    is_quick: bool
    ttft_ms: float | None
    tpot_ms: float | None
    bench: BenchSettings
    settings: dict[str, object]
    command: str
    machine: dict[str, object]


@dataclass(slots=True)
class _Measured:
    """What a run has collected so far; an interrupt keeps it."""

    slices: list[Slice] = field(default_factory=list)
    solo: list[Solo] = field(default_factory=list)
    counts: Callable[[], SliceCounts] = lambda: SliceCounts(0, 0, 0)
    setup_s: float = 0.0


def pieces_of(trace: Trace, *, count: int, seconds: float, seed: int) -> list[Trace]:
    """Cut consecutive pieces out of the trace, from a seeded start that leaves room for all."""
    room_s = trace.duration_s - count * seconds
    if room_s < 0:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at this load, less than "
            f"{count} pieces of {seconds:.1f} s: give a longer one, or lower the load"
        )
    start_s = float(np.random.default_rng(seed).uniform(0.0, room_s))
    return [trace.window(start_s + number * seconds, seconds) for number in range(count)]


def run_experiment(
    experiment: Experiment, clock: Clock, phases: Phases, on_interim: Callable[[RunRecord], None]
) -> RunRecord:
    """Run all arms and say what came out; an interrupt ends it early and is not an error.

    Args:
        experiment: what is run.
        clock: where time comes from.
        phases: shows what is done.
        on_interim: gets what there is after two rounds.

    Raises:
        InvalidArgument: a setting that does not fit another; nothing is left behind.
        Unavailable: an engine died.
    """
    settings = experiment.bench
    with (
        _folder_of(settings.log_path),
        on_device_cores(settings),
        serving_alone(experiment.serving_model, settings, clock) as alone,
    ):
        trace, found, slo = _calibrated(experiment, alone, phases)
        measured, is_complete, circle = _Measured(), False, None
        with bench(
            experiment.serving_model, experiment.rollout_model, alone, slo, settings, clock
        ) as built:

            def record(circle: CircleRecord | None) -> RunRecord:
                return _record(experiment, built, measured, found, slo, circle)

            try:
                _run_arms(
                    built,
                    experiment,
                    trace,
                    measured,
                    clock,
                    phases,
                    lambda: on_interim(record(None)),
                )
                is_complete = True
            except KeyboardInterrupt:
                phases.begin("interrupted: reporting what there is")
            phases.begin("stopping the programs")
            circle = built.circle()
            ended = record(circle)
    return _verified(replace(ended, complete=is_complete), settings.log_path)


def _calibrated(
    experiment: Experiment, alone: Alone, phases: Phases
) -> tuple[Trace, Calibration, SLO]:
    """Measure serving alone, and choose its targets."""
    settings = experiment.bench
    phases.begin("measuring the capacity of serving alone")
    capacity_rps = alone.capacity_rps(experiment.trace)
    rate_rps = experiment.load * capacity_rps
    trace = experiment.trace.rescaled(rate_rps=rate_rps)
    phases.begin(
        f"capacity {capacity_rps:.1f} requests/s; timing serving's steps at {rate_rps:.1f}"
    )
    (piece,) = pieces_of(trace, count=1, seconds=_CALIBRATION_S, seed=settings.seed + 1)
    found = alone.calibrate(piece)
    slo = choose_targets(found, ttft_ms=experiment.ttft_ms, tpot_ms=experiment.tpot_ms)
    outlook = feasibility(
        found.steps,
        slo,
        settings.policy,
        segment_ms=settings.policy.segment_prior_ms,
        rank=100 * (1 - settings.policy.epsilon),
    )
    phases.begin(f"targets: TTFT {slo.ttft_ms:g} ms, TPOT {slo.tpot_ms:g} ms")
    if outlook.why is not None:
        phases.begin(f"hardly a quantum can be certified: {outlook.why}")
    return trace, found, slo


def _run_arms(  # noqa: PLR0917 (what an experiment has)
    built: Bench,
    experiment: Experiment,
    trace: Trace,
    measured: _Measured,
    clock: Clock,
    phases: Phases,
    on_interim: Callable[[], None],
) -> None:
    """Run every arm in every round, in an order that changes from round to round."""
    rounds = _ROUNDS_QUICK if experiment.is_quick else _ROUNDS
    slice_s = _SLICE_QUICK_S if experiment.is_quick else _SLICE_S
    pieces = pieces_of(trace, count=rounds, seconds=slice_s, seed=experiment.bench.seed)
    phases.begin("gathering evidence for certificates, while the programs start")
    # They are not on the device's cores, and nobody waits for the first while the second runs.
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(built.start)
        built.warm_up(
            lambda done, wanted: phases.advance("gathering evidence", done=done, wanted=wanted)
        )
        phases.begin("starting trainer, relay and dedicated worker")
        started.result()
    for arm in ARMS:
        phases.begin(f"warming up: {_said(arm)}")
        built.run(pieces[0].window(0.0, _WARM_UP_S), arm=arm, number=-1)
    measured.setup_s = phases.seconds
    round_s = slice_s * len(ARMS) + sum(seconds for _, seconds in _SOLO_S)
    watch = _watch(experiment.bench.cores)
    slices = Slices[Slice](watch, clock, spare_s=_SPARE_SHARE * rounds * round_s)
    solos = Slices[Solo](watch, clock, spare_s=0.0)
    measured.counts = slices.counts
    for number, piece in enumerate(pieces):
        phases.begin(f"round {number + 1} of {rounds}", done=number, wanted=rounds)
        for arm, seconds in _SOLO_S:
            solo, is_void = solos.take(partial(built.solo, arm, seconds))
            if is_void:
                phases.begin(f"rollouts alone in {_said(arm)} left out: {solos.last_why}")
            else:
                measured.solo.append(solo)
        for arm in in_turn(ARMS, number):
            phases.advance(
                f"round {number + 1} of {rounds}: {_said(arm)}",
                done=number,
                wanted=rounds,
            )
            taken, is_void = slices.take(partial(built.run, piece, arm=arm, number=number))
            if is_void:
                phases.begin(f"slice of {_said(arm)} left out: {slices.last_why}")
            measured.slices.append(replace(taken, is_void=is_void))
        if number + 1 == _INTERIM_ROUNDS < rounds:
            on_interim()


def _said(arm: str) -> str:
    return arm.replace("_", " ")


def _watch(cores: frozenset[int]) -> Callable[[], WhyVoid]:
    """Return what begins to watch the cores of a CPU device; a GPU has none to watch."""
    if not cores:
        return lambda: lambda: None
    processes = children(os.getpid())

    def begin() -> WhyVoid:
        before = read_core_use(cores, processes)
        return lambda: why_foreign(before, read_core_use(cores, processes))

    return begin


@contextmanager
def _folder_of(log_path: Path) -> Iterator[None]:
    """Have a folder for the log; when the experiment fails, leave none that was not there."""
    folder = log_path.parent
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if not succeeded:
            log_path.unlink(missing_ok=True)
            if made:
                folder.rmdir()


def _record(  # noqa: PLR0917 (what an experiment has)
    experiment: Experiment,
    built: Bench,
    measured: _Measured,
    found: Calibration,
    slo: SLO,
    circle: CircleRecord | None,
) -> RunRecord:
    settings = experiment.bench
    is_chosen = experiment.ttft_ms is None or experiment.tpot_ms is None
    return RunRecord(
        slices=tuple(measured.slices),
        solo=tuple(measured.solo),
        calibration=found.steps,
        slo=slo,
        slo_from="calibration" if is_chosen else "flags",
        signal_ms=settings.policy.signal_ms,
        lending=built.lending(),
        slice_counts=measured.counts(),
        certificates_granted=0,
        certificates_verified=0,
        certificate_violations=0,
        revocations=built.revocations(),
        timeline=read_timeline(settings.log_path, ()),
        setup_s=measured.setup_s,
        machine=experiment.machine,
        settings=experiment.settings,
        seed=settings.seed,
        command=experiment.command,
        complete=False,
        circle=circle,
        broker=built.broker(),
    )


def _verified(record: RunRecord, log_path: Path) -> RunRecord:
    """Add what the log says, which is whole once the device is closed."""
    verification = verify_log(log_path)
    return replace(
        record,
        certificates_granted=verification.granted,
        certificates_verified=verification.verified,
        certificate_violations=len(verification.violations),
        timeline=read_timeline(log_path, record.slices),
    )
