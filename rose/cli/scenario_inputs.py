"""Reads the files that scenarios name: traces of serving and of agents, and rates."""

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.sim.request import Request
from rose.sim.scenario.environments import Replayed
from rose.sim.scenario.parts import DailyTraffic, TraceTraffic
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.sessions import Sessions
from rose.sim.scenario.traffic import RATES_WINDOW_MS, Inputs
from rose.traces.agents import AgentTrace, read_agent_trace
from rose.traces.reader import read_trace
from rose.traces.text_file import opened
from rose.units import MS_PER_S

_RATES_HEADER: Final = ("model", "t_s", "rate_rps")
_EXPECTED: Final = f"expected rates of services: columns {','.join(_RATES_HEADER)} first among all"


def read_inputs(scenarios: Iterable[Scenario], *, beside: Path) -> Inputs:
    """Read every file that scenarios name, once.

    Args:
        scenarios: of one file.
        beside: the folder that their paths are relative to.

    Raises:
        InvalidArgument: a file cannot be read, or is not what it should be.
    """
    requests: dict[str, list[Request]] = {}
    rates: dict[str, dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    sessions: dict[str, Sessions] = {}
    for scenario in scenarios:
        for job in scenario.jobs:
            if isinstance(job.environment, Replayed) and job.environment.trace not in sessions:
                path = job.environment.trace
                sessions[path] = sessions_of(read_agent_trace(beside / path))
        for group in scenario.borrowed:
            traffic = group.traffic
            if isinstance(traffic, TraceTraffic) and traffic.trace not in requests:
                requests[traffic.trace] = _requests(beside / traffic.trace)
            elif isinstance(traffic, DailyTraffic) and traffic.rates not in rates:
                rates[traffic.rates] = _rates(beside / traffic.rates)
    return Inputs(requests=requests, rates=rates, sessions=sessions)


def sessions_of(trace: AgentTrace) -> Sessions:
    """Return a trace of agents as what scenarios replay, and distributions are fitted to.

    A turn that heard or said nothing counts as one token; a wait that is not known as none.
    """
    first = np.append(np.flatnonzero(trace.turn == 0), len(trace)).astype(np.int64)
    # What a row waits for is its own beginning: it belongs to the turn before it.
    wait_s = np.append(np.nan_to_num(trace.think_time_s[1:]), 0.0)
    wait_s[first[1:] - 1] = 0.0
    return Sessions(
        first_turn=first,
        heard_tokens=np.maximum(1, trace.input_tokens - trace.prefix_reused_tokens),
        said_tokens=np.maximum(1, trace.output_tokens),
        wait_s=wait_s,
    )


def _requests(path: Path) -> list[Request]:
    trace = read_trace(path)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    return [
        Request(MS_PER_S * float(at_s), max(1, int(prompt)), max(1, int(output)))
        for at_s, prompt, output in zip(*columns, strict=True)
    ]


def _rates(path: Path) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    rates: dict[str, list[float]] = {}
    with opened(path, _EXPECTED) as lines:
        rows = csv.reader(lines)
        if tuple(next(rows, [])[:3]) != _RATES_HEADER:
            raise InvalidArgument(f"{path} line 1: {_EXPECTED}")
        for line, row in enumerate(rows, 2):
            try:
                model, at_s, rate = row[0], float(row[1]), float(row[2])
            except (IndexError, ValueError):
                raise InvalidArgument(f"{path} line {line}: {_EXPECTED}") from None
            of_model = rates.setdefault(model, [])
            if at_s * MS_PER_S != len(of_model) * RATES_WINDOW_MS:
                raise InvalidArgument(
                    f"{path} line {line}: {model} is at {at_s:g} s; rates are of ten minutes each, "
                    "from 0, in order"
                )
            if not 0 <= rate < math.inf:
                raise InvalidArgument(f"{path} line {line}: a rate of {rate} is none")
            of_model.append(rate)
    if not rates or any(max(of_model) == 0 for of_model in rates.values()):
        raise InvalidArgument(f"{path} has a model without requests")
    return {model: np.array(of_model, dtype=np.float64) for model, of_model in rates.items()}
