"""Stress of a scenario, as changes of loans.

Some stress depends on results: revocations during an update need the times of versions. A run with
such stress is repeated with the times of the previous run. An event never changes the past, so in
each run at least one more version is published at its final time than in the run before.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rose.units import MS_PER_S
from rose_lab.sim.cluster.world import LendingTimeline, SimWorker
from rose_lab.sim.scenario.parts import (
    EngineCrashes,
    Flapping,
    RevokeAfterPrefill,
    RevokeAll,
    RevokeDuringUpdate,
    StalledTrainer,
    Stress,
)

Column = npt.NDArray[np.float64]
Spans: TypeAlias = Column
"""(n, 2) start and end of times without a loan; ascending starts, possibly overlapping."""


def troubled(
    engines: Sequence[SimWorker],
    stress: Sequence[Stress],
    *,
    horizon_ms: float,
    published_ms: Column,
    random: np.random.Generator,
) -> tuple[LendingTimeline, ...]:
    """Return the loans of engines with all stress applied.

    Args:
        engines: borrowed engines.
        stress: all disturbances.
        horizon_ms: horizon of the simulation.
        published_ms: (v,) publication times of an earlier run, ascending; empty in the first.
        random: generator for crashes.
    """
    lendings = [engine.lending for engine in engines if engine.lending is not None]
    domains = sorted({engine.domain for engine in engines})
    for one in stress:
        crashes: dict[int, Spans] = {}
        if isinstance(one, EngineCrashes):
            crashes = {domain: _crashes(one, horizon_ms, random) for domain in domains}
        for at, engine in enumerate(engines):
            if isinstance(one, EngineCrashes):
                spans = crashes[engine.domain]
            elif isinstance(one, RevokeAll):
                is_hit = domains.index(engine.domain) < np.ceil(one.share * len(domains))
                rows = [(one.at_s, one.at_s + one.for_s)] if is_hit else []
                spans = MS_PER_S * np.array(rows, dtype=np.float64)
            else:
                spans = _spans(one, engine, horizon_ms=horizon_ms, published_ms=published_ms)
            lendings[at] = without(lendings[at], spans.reshape(-1, 2))
    return tuple(lendings)


def _spans(
    stress: Flapping | RevokeAfterPrefill | RevokeDuringUpdate | StalledTrainer,
    engine: SimWorker,
    *,
    horizon_ms: float,
    published_ms: Column,
) -> Spans:
    if isinstance(stress, StalledTrainer):
        return np.zeros((0, 2))
    if isinstance(stress, RevokeDuringUpdate):
        begins_ms = published_ms + stress.into * engine.update_ms
        return np.stack((begins_ms, begins_ms + MS_PER_S * stress.for_s), axis=1)
    if isinstance(stress, Flapping):
        lent_ms = MS_PER_S * stress.lent_s
    else:
        # A loan ends when the first long prompt has been computed: the worst moment.
        prefill_ms = MS_PER_S * stress.prompt_tokens / engine.times.prefill_tokens_per_s
        lent_ms = engine.start_up_ms + prefill_ms
    away_ms = MS_PER_S * stress.away_s
    begins_ms = np.arange(lent_ms, horizon_ms, lent_ms + away_ms)
    return np.stack((begins_ms, np.minimum(begins_ms + away_ms, horizon_ms)), axis=1)


def _crashes(stress: EngineCrashes, horizon_ms: float, random: np.random.Generator) -> Spans:
    """Return the down times of a domain, with exponential times between crashes."""
    every_ms, down_ms = MS_PER_S * stress.every_s, MS_PER_S * stress.down_s
    spans: list[tuple[float, float]] = []
    at_ms = random.exponential(every_ms)
    while at_ms < horizon_ms:
        spans.append((at_ms, at_ms + down_ms))
        at_ms += down_ms + random.exponential(every_ms)
    return np.array(spans, dtype=np.float64)


def without(lending: LendingTimeline, spans: Spans) -> LendingTimeline:
    """Return the loan without the given times."""
    times = np.union1d(lending.at_ms, spans.ravel())
    row = np.searchsorted(lending.at_ms, times, side="right") - 1
    # Spans may overlap: a moment is inside a span while more spans have begun than ended.
    begun = np.searchsorted(np.sort(spans[:, 0]), times, side="right")
    ended = np.searchsorted(np.sort(spans[:, 1]), times, side="right")
    is_lent = begun <= ended
    share = np.where(is_lent, lending.share[row], 0.0)
    kv_tokens = np.where(is_lent, lending.kv_tokens[row], 0)
    is_new = np.concatenate(([True], (np.diff(share) != 0) | (np.diff(kv_tokens) != 0)))
    return LendingTimeline(at_ms=times[is_new], share=share[is_new], kv_tokens=kv_tokens[is_new])
