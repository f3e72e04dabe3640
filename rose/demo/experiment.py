"""The experiment behind `rose demo`: which arm replays which piece of the trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rose.clock import Clock
from rose.config import read_environment
from rose.demo.bench import Bench, BenchSettings, Felt, bench
from rose.demo.record import ARMS, CircleRecord, RunRecord, WindowRecord
from rose.demo.timeline import read_timeline
from rose.engines.transformers import Model
from rose.errors import InvalidArgument
from rose.slo.verify import verify_log
from rose.traces import Trace

# Enough requests for a P99 with three beyond it, with some to spare.
_REQUESTS_PER_ARM: Final = 330
# The whole run takes this at most, whatever the rate turns out to be.
_MEASURED_S_MAX: Final = 290.0
_ALONE_S: Final = 1.5
_WARM_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what runs.

    Args:
        windows: rounds; each replays one piece of the trace under every arm.
        window_s: length of the piece.
    """

    windows: int
    window_s: float

    @classmethod
    def make(cls, *, rate_rps: float, windows: int, is_quick: bool) -> "Plan":
        """Choose a window length that gives enough requests within the time there is."""
        if is_quick:
            return cls(windows=min(windows, 3), window_s=2.5)
        wanted_s = _REQUESTS_PER_ARM / rate_rps / windows
        allowed_s = _MEASURED_S_MAX / windows / len(ARMS)
        return cls(windows=windows, window_s=min(max(wanted_s, 6.0), allowed_s))


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is run.

    Args:
        serving_model: answers the trace.
        rollout_model: generates in the slack.
        trace: of lengths that serving accepts; its rate does not matter.
        load: share of the device's measured capacity.
        windows: rounds of all arms.
        is_quick: a look, not a measurement.
        bench: how the engines are built.
        settings: what the user asked for, for the report.
        command: the command line that repeats it.
        machine: what runs it.
    """

    serving_model: Model
    rollout_model: Model
    trace: Trace
    load: float
    windows: int
    is_quick: bool
    bench: BenchSettings
    settings: dict[str, object]
    command: str
    machine: dict[str, object]


@dataclass(slots=True)
class _Measured:
    """What a run has collected so far; an interrupt keeps it."""

    windows: list[WindowRecord] = field(default_factory=list)
    rollouts_alone: list[float] = field(default_factory=list)


def pieces_of(trace: Trace, plan: Plan, *, seed: int) -> list[Trace]:
    """Cut consecutive windows out of the trace, from a seeded start that leaves room for all."""
    room_s = trace.duration_s - plan.windows * plan.window_s
    if room_s < 0:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at this load, less than "
            f"{plan.windows} windows of {plan.window_s:.1f} s: lower --windows or --load"
        )
    start_s = float(np.random.default_rng(seed).uniform(0.0, room_s))
    return [
        trace.window(start_s + number * plan.window_s, plan.window_s)
        for number in range(plan.windows)
    ]


@contextmanager
def _progress(console: Console, *, total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} windows"),
        TimeElapsedColumn(),
    )
    is_quiet = read_environment().is_ci or not console.is_terminal
    with Progress(*columns, console=console, disable=is_quiet, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield progress, task


def _measure(
    built: Bench, pieces: list[Trace], plan: Plan, measured: _Measured, console: Console
) -> None:
    """Run every arm of every window, in an order that changes from round to round."""
    for arm in ARMS:
        built.run(pieces[0].window(0.0, min(_WARM_UP_S, plan.window_s)), arm=arm, window=-1)
    with _progress(console, total=len(pieces) * len(ARMS)) as (progress, task):
        for number, piece in enumerate(pieces):
            measured.rollouts_alone.append(built.rollouts_alone(_ALONE_S))
            turn = number % len(ARMS)
            for arm in ARMS[turn:] + ARMS[:turn]:
                progress.update(task, description=f"window {number + 1}: {arm.replace('_', ' ')}")
                measured.windows.append(built.run(piece, arm=arm, window=number))
                progress.advance(task)


def run_experiment(experiment: Experiment, clock: Clock, console: Console) -> RunRecord:
    """Run all arms and say what came out; an interrupt ends it early and is not an error.

    Raises:
        InvalidArgument: a setting that does not fit another; nothing is left behind.
        Unavailable: an engine died.
    """
    measured, is_complete = _Measured(), False
    with (
        _folder_of(experiment.bench.log_path),
        bench(experiment.serving_model, experiment.rollout_model, experiment.bench, clock) as built,
    ):
        try:
            _run_arms(built, experiment, measured, console)
            is_complete = True
        except KeyboardInterrupt:
            console.print("interrupted: reporting what there is")
        felt, broker, circle = built.felt(), built.broker(), built.circle()
    record = _record(experiment, measured, felt, circle, is_complete=is_complete)
    return replace(record, broker=broker)


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


def _run_arms(built: Bench, experiment: Experiment, measured: _Measured, console: Console) -> None:
    capacity_rps = built.capacity_rps(experiment.trace)
    rate_rps = experiment.load * capacity_rps
    plan = Plan.make(rate_rps=rate_rps, windows=experiment.windows, is_quick=experiment.is_quick)
    console.print(
        f"capacity {capacity_rps:.1f} requests/s; load {experiment.load:g} is {rate_rps:.1f}; "
        f"{plan.windows} windows of {plan.window_s:.1f} s, {len(ARMS)} arms"
    )
    trace = experiment.trace.rescaled(rate_rps=rate_rps)
    _measure(built, pieces_of(trace, plan, seed=experiment.bench.seed), plan, measured, console)


def _record(
    experiment: Experiment,
    measured: _Measured,
    felt: Felt,
    circle: CircleRecord | None,
    *,
    is_complete: bool,
) -> RunRecord:
    settings = experiment.bench
    verification = verify_log(settings.log_path)
    return RunRecord(
        windows=tuple(measured.windows),
        rollout_alone_tokens_per_s=float(np.median(measured.rollouts_alone or [0.0])),
        slo_ttft_ms=settings.slo.ttft_ms,
        slo_tpot_ms=settings.slo.tpot_ms,
        blocked_by_rollout_ms=felt.blocked_ms,
        segment_ms=felt.segment_ms,
        certificates_granted=verification.granted,
        certificates_verified=verification.verified,
        certificate_violations=len(verification.violations),
        revocations=felt.revocations,
        pauses=felt.pauses,
        timeline=read_timeline(settings.log_path, measured.windows),
        machine=experiment.machine,
        settings=experiment.settings,
        seed=settings.seed,
        command=experiment.command,
        complete=is_complete,
        circle=circle,
    )
