"""An experiment on real engines: calibrate the targets, then run the arms in short slices."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.engines.transformers import Model
from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.slo.verify import verify_log
from rose_lab.demo.bench import Alone, Bench
from rose_lab.demo.progress import Phases
from rose_lab.demo.record import Audit, RlLoopRecord, RunPlan, RunRecord, Slice, SliceCounts
from rose_lab.demo.settings import BenchSettings, on_device_cores
from rose_lab.demo.slices import SliceTaker, WhyVoid, in_turn, read_core_use, why_foreign
from rose_lab.demo.targets import Calibration, choose_targets, feasibility
from rose_lab.demo.timeline import read_timeline
from rose_lab.traces import Trace

SLICE_S: Final = 6.0
"""Each slice pauses and resumes a borrowed worker, which would dominate much shorter slices."""
SHARE_ALL_SOLO_S: Final = 1.5
_WARM_UP_S: Final = 2.0
_CALIBRATION_S: Final = 8.0
_SPARE_SHARE: Final = 0.25
_INTERIM_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class Experiment:
    """Inputs of `run_experiment`.

    Args:
        plan: arms, and loads as shares of the device's measured capacity.
        trace: requests with lengths that serving accepts; its rate is rescaled.
        rounds: slices of each arm at each load.
        solo_s: (arm, seconds) pairs: in every round the arm's rollouts run alone for that time.
        ttft_ms: serving's TTFT target; None chooses a multiple of the TTFT of serving alone.
        tpot_ms: serving's TPOT target; None chooses a multiple of the TPOT of serving alone.
    """

    plan: RunPlan
    serving_model: Model
    rollout_model: Model
    trace: Trace
    rounds: int
    slice_s: float
    solo_s: tuple[tuple[str, float], ...]
    ttft_ms: float | None
    tpot_ms: float | None
    bench: BenchSettings


def pieces_of(trace: Trace, *, count: int, seconds: float, seed: int) -> list[Trace]:
    """Cut `count` consecutive pieces out of the trace, from a random start."""
    room_s = trace.duration_s - count * seconds
    if room_s < 0:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at this load, less than "
            f"{count} pieces of {seconds:.1f} s: give a longer trace, or lower the load"
        )
    start_s = float(np.random.default_rng(seed).uniform(0.0, room_s))
    return [trace.window(start_s + number * seconds, seconds) for number in range(count)]


def run_experiment(
    experiment: Experiment, clock: Clock, phases: Phases, on_interim: Callable[[RunRecord], None]
) -> RunRecord:
    """Run all arms and return their record; an interrupt ends the run early without an error.

    `on_interim` gets the record after two rounds of the first load, if more rounds follow.

    Raises:
        InvalidArgument: two settings conflict, or the trace is too short; all engines are stopped.
        Unavailable: an engine died.
    """
    settings = experiment.bench
    with on_device_cores(settings), ExitStack() as owned:
        alone = Alone(experiment.serving_model, settings, clock, owned=owned)
        capacity_rps, found, slo = _calibrated(experiment, alone, phases)
        is_complete = False
        built = Bench(
            experiment.rollout_model,
            experiment.plan.schemes,
            alone,
            slo,
            settings=settings,
            clock=clock,
            owned=owned,
        )

        rounds = _Rounds(built, experiment, capacity_rps, clock, phases)
        try:
            rounds.run(lambda: on_interim(_record(rounds, found, slo, None)))
            is_complete = True
        except KeyboardInterrupt:
            phases.begin("interrupted: reporting the slices measured so far")
        phases.begin("stopping the programs")
        ended = _record(rounds, found, slo, built.rl_loop())
    return _verified(replace(ended, complete=is_complete), built)


def _calibrated(
    experiment: Experiment, alone: Alone, phases: Phases
) -> tuple[float, Calibration, SLO]:
    """Measure serving alone (capacity, latencies at the highest load), and choose the targets."""
    settings = experiment.bench
    phases.begin("measuring the capacity of serving alone")
    capacity_rps = alone.capacity_rps(experiment.trace)
    rate_rps = experiment.plan.loads[-1] * capacity_rps
    trace = experiment.trace.rescaled(rate_rps=rate_rps)
    phases.begin(
        f"capacity {capacity_rps:.1f} requests/s; timing serving's steps at {rate_rps:.1f}/s"
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
        phases.begin(f"few quanta can be certified: {outlook.why}")
    return capacity_rps, found, slo


@dataclass(slots=True)
class _Rounds:
    """Runs every arm in every round, in rotating order; an interrupt keeps the results so far."""

    built: Bench
    experiment: Experiment
    capacity_rps: float
    clock: Clock
    phases: Phases
    slices: list[Slice] = field(default_factory=list)
    solo: list[Slice] = field(default_factory=list)
    counts: Callable[[], SliceCounts] = lambda: SliceCounts(0, 0, 0)
    setup_s: float = 0.0

    def run(self, on_interim: Callable[[], None]) -> None:
        """Run all loads; call `on_interim` after two rounds of the first load, if more follow."""
        experiment = self.experiment
        pieces = {load: self._pieces(load) for load in experiment.plan.loads}
        first = experiment.plan.loads[0]
        self._start(pieces[first][0].window(0.0, _WARM_UP_S))
        self.setup_s = self.phases.seconds
        round_s = experiment.slice_s * len(experiment.plan.schemes)
        round_s += sum(seconds for _, seconds in experiment.solo_s)
        watch = _watch(experiment.bench.cores)
        all_s = experiment.rounds * len(experiment.plan.loads) * round_s
        slices = SliceTaker(watch, self.clock, spare_s=_SPARE_SHARE * all_s)
        solos = SliceTaker(watch, self.clock, spare_s=0.0)
        self.counts = slices.counts
        for load in experiment.plan.loads:
            for number, piece in enumerate(pieces[load]):
                self._round(load, number, piece, slices, solos)
                if load == first and number + 1 == _INTERIM_ROUNDS < experiment.rounds:
                    on_interim()

    def _pieces(self, load: float) -> list[Trace]:
        experiment = self.experiment
        trace = experiment.trace.rescaled(rate_rps=load * self.capacity_rps)
        return pieces_of(
            trace, count=experiment.rounds, seconds=experiment.slice_s, seed=experiment.bench.seed
        )

    def _start(self, piece: Trace) -> None:
        """Start the arms' programs, and warm the arms up."""
        phases = self.phases
        phases.begin("gathering evidence for certificates, while the programs start")
        # The programs run off the device's cores, so they can start while evidence is collected.
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(self.built.start)
            self.built.warm_up(
                lambda done, wanted: phases.advance("gathering evidence", done=done, wanted=wanted)
            )
            phases.begin("starting trainer, relay and dedicated worker")
            started.result()
        for arm in self.built.arms:
            phases.begin(f"warming up: {_title(arm)}")
            self.built.run(piece, arm, number=-1)

    def _round(
        self, load: float, number: int, piece: Trace, slices: SliceTaker, solos: SliceTaker
    ) -> None:
        experiment, phases = self.experiment, self.phases
        named = f"round {number + 1} of {experiment.rounds}"
        if len(experiment.plan.loads) > 1:
            named = f"load {load:g}, {named}"
        phases.begin(named, done=number, wanted=experiment.rounds)
        for arm, seconds in experiment.solo_s:
            solo = solos.take(partial(self.built.solo, arm, seconds))
            if solo.is_void:
                phases.begin(f"left out a slice of {_title(arm)}, rollouts alone: {solos.last_why}")
            else:
                self.solo.append(solo)
        for arm in in_turn(list(self.built.arms), number):
            name = f"{named}: {_title(arm)}"
            phases.advance(name, done=number, wanted=experiment.rounds)
            taken = slices.take(partial(self.built.run, piece, arm, number=number))
            if taken.is_void:
                phases.begin(f"left out a slice of {_title(arm)}: {slices.last_why}")
            self.slices.append(replace(taken, load=load))


def _title(arm: str) -> str:
    return arm.replace("_", " ")


def _watch(cores: frozenset[int]) -> Callable[[], WhyVoid]:
    """Return a function that starts to watch a CPU device's cores; on a GPU it does nothing."""
    if not cores:
        return lambda: lambda: None

    def begin() -> WhyVoid:
        before = read_core_use(cores)
        return lambda: why_foreign(before, read_core_use(cores))

    return begin


@contextmanager
def folder_of(log_path: Path) -> Iterator[None]:
    """Make the log's folder; if the experiment fails, remove the log and a folder made here."""
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


def _record(
    rounds: _Rounds, found: Calibration, slo: SLO, rl_loop: RlLoopRecord | None
) -> RunRecord:
    experiment = rounds.experiment
    is_chosen = experiment.ttft_ms is None or experiment.tpot_ms is None
    record = RunRecord(
        plan=experiment.plan,
        slices=tuple(rounds.slices),
        solo=tuple(rounds.solo),
        calibration=found.steps,
        slo=slo,
        slo_from="calibration" if is_chosen else "flags",
        signal_ms=experiment.bench.policy.signal_ms,
        slice_counts=rounds.counts(),
        setup_s=rounds.setup_s,
        complete=False,
        rl_loop=rl_loop,
    )
    rose = rounds.built.devices.get("rose")
    if rose is None:
        return record
    return replace(
        record,
        lending=rose.lending(),
        revocations=rose.revocations(),
        broker=None if rose.broker is None else rose.broker.record(),
    )


def _verified(record: RunRecord, built: Bench) -> RunRecord:
    """Add audits and timeline from the logs, which are complete once the devices are closed."""
    audits = []
    for arm, device in built.devices.items():
        found = verify_log(device.log_path)
        audits.append(Audit(arm, found.granted, found.verified, len(found.violations)))
    record = replace(record, audits=tuple(audits))
    rose = built.devices.get("rose")
    if rose is None:
        return record
    return replace(record, timeline=read_timeline(rose.log_path, record.slices))
