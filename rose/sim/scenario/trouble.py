"""What goes wrong in a scenario, as changes of what is lent.

Some of it happens when something else does: what is revoked during an update needs to know when
versions come out. Nothing that happens later changes what came before, so a run that is repeated
with the times of the one before has one more version right each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rose.sim.cluster.lending_stress import flapping, revoked, revoked_during_updates
from rose.sim.cluster.world import Lending
from rose.sim.scenario.parts import (
    EngineCrashes,
    Flapping,
    RevokeAfterPrefill,
    RevokeAll,
    RevokeDuringUpdate,
    Stress,
)
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lent:
    """A borrowed engine, as trouble sees it.

    Args:
        lending: of it.
        domain: whom it shares its fate with.
        start_up_ms: until it runs turns after it was lent anew.
        update_ms: of an update, from its publication to its commit.
        prefill_tokens_per_s: of its prompts.
    """

    lending: Lending
    domain: int
    start_up_ms: float
    update_ms: float
    prefill_tokens_per_s: float


def troubled(
    engines: Sequence[Lent],
    stress: Sequence[Stress],
    *,
    horizon_ms: float,
    published_ms: Column,
    random: np.random.Generator,
) -> tuple[Lending, ...]:
    """Return what engines lend when all of the stress is over them.

    Args:
        engines: the borrowed ones.
        stress: what goes wrong, all of it.
        horizon_ms: of the simulation.
        published_ms: (v,) ascending, when versions came out in a run before; empty in the first.
        random: of crashes.
    """
    lendings = [engine.lending for engine in engines]
    for one in stress:
        spans = _crashes(one, engines, horizon_ms, random)
        for at, engine in enumerate(engines):
            lendings[at] = _harder(
                lendings[at],
                one,
                engine,
                horizon_ms=horizon_ms,
                published_ms=published_ms,
                is_hit=_is_hit(one, engine, engines),
                crashes=spans.get(engine.domain, []),
            )
    return tuple(lendings)


def _harder(
    lending: Lending,
    stress: Stress,
    engine: Lent,
    *,
    horizon_ms: float,
    published_ms: Column,
    is_hit: bool,
    crashes: Sequence[tuple[float, float]],
) -> Lending:
    if isinstance(stress, RevokeAll) and is_hit:
        from_ms = MS_PER_S * stress.at_s
        return revoked(lending, from_ms=from_ms, to_ms=from_ms + MS_PER_S * stress.for_s)
    if isinstance(stress, Flapping):
        lent_ms, away_ms = MS_PER_S * stress.lent_s, MS_PER_S * stress.away_s
        return _flapping(lending, lent_ms, away_ms, horizon_ms, MS_PER_S * stress.from_s)
    if isinstance(stress, RevokeAfterPrefill):
        # A lease lasts until the first long prompt was computed: the worst moment to lose it.
        prefill_ms = MS_PER_S * stress.prompt_tokens / engine.prefill_tokens_per_s
        lent_ms = engine.start_up_ms + prefill_ms
        return _flapping(lending, lent_ms, MS_PER_S * stress.away_s, horizon_ms, 0.0)
    if isinstance(stress, RevokeDuringUpdate):
        return revoked_during_updates(
            lending,
            published_ms=published_ms,
            after_ms=stress.into * engine.update_ms,
            for_ms=MS_PER_S * stress.for_s,
        )
    for from_ms, to_ms in crashes:
        lending = revoked(lending, from_ms=from_ms, to_ms=to_ms)
    return lending


def _flapping(
    lending: Lending, lent_ms: float, away_ms: float, horizon_ms: float, from_ms: float
) -> Lending:
    period_ms = lent_ms + away_ms
    return flapping(
        lending,
        period_ms=period_ms,
        lent_share=lent_ms / period_ms,
        horizon_ms=horizon_ms,
        phase_ms=from_ms,
    )


def _is_hit(stress: Stress, engine: Lent, engines: Sequence[Lent]) -> bool:
    if not isinstance(stress, RevokeAll):
        return False
    domains = sorted({one.domain for one in engines})
    hit = domains[: int(np.ceil(stress.share * len(domains)))]
    return engine.domain in hit


def _crashes(
    stress: Stress, engines: Sequence[Lent], horizon_ms: float, random: np.random.Generator
) -> dict[int, list[tuple[float, float]]]:
    """Return, of each domain, when it is down: times between crashes are exponential."""
    if not isinstance(stress, EngineCrashes):
        return {}
    every_ms, down_ms = MS_PER_S * stress.every_s, MS_PER_S * stress.down_s
    spans: dict[int, list[tuple[float, float]]] = {}
    for domain in sorted({engine.domain for engine in engines}):
        spans[domain] = []
        at_ms = random.exponential(every_ms)
        while at_ms < horizon_ms:
            spans[domain].append((at_ms, at_ms + down_ms))
            at_ms += down_ms + random.exponential(every_ms)
    return spans
