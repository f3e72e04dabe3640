"""Read from the core why and how often quanta were refused, and the evidence behind each bound."""

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypedDict

from rose._core import Creditor, HarvestMode, LatencyModel, QuantumRefusal
from rose.events import Reason, SegmentLimit
from rose.executor.probing import Seen, ShapeName
from rose.executor.reading import Binding, ShapeEvidence
from rose.slo.evidence import SHAPE_NAMES, Shape

REASONS: Final = {
    QuantumRefusal.SERVING_BUSY: Reason.SERVING_BUSY,
    QuantumRefusal.NO_HEARTBEAT: Reason.NO_HEARTBEAT,
    QuantumRefusal.SLO_AT_RISK: Reason.SLO_AT_RISK,
    QuantumRefusal.NO_EVIDENCE: Reason.NO_EVIDENCE,
    QuantumRefusal.LOG_BROKEN: Reason.LOG_BROKEN,
    QuantumRefusal.SEGMENT_TOO_LONG: Reason.SEGMENT_TOO_LONG,
    QuantumRefusal.BUDGET_SPENT: Reason.BUDGET_SPENT,
}
UNCERTIFIED: Final = (QuantumRefusal.SLO_AT_RISK, QuantumRefusal.NO_EVIDENCE)
"""Refusals because no certificate was possible, although serving was not busy."""


class Refusals(TypedDict):
    """The fields of `DeviceReading` that come from a creditor."""

    refusals: Mapping[str, int]
    refused_s: Mapping[str, float]
    granted_s: float
    binding: Binding | None


def read_refusals(creditor: Creditor) -> Refusals:
    """Return the refusals that `creditor` has counted."""
    return {
        "refusals": {reason.name.lower(): creditor.refused(why) for why, reason in REASONS.items()},
        "refused_s": {
            reason.name.lower(): creditor.refused_s(why) for why, reason in REASONS.items()
        },
        "granted_s": creditor.granted_s,
        "binding": _binding(creditor),
    }


def read_seen(creditor: Creditor, shapes: Iterable[ShapeName], *, is_idle: bool) -> Seen:
    """Return the input of `ProbeRation`, from the creditor's counters."""
    shape = None if creditor.binding is None else creditor.binding.shape
    return Seen(
        is_idle=is_idle,
        granted=sum(creditor.granted(mode) for mode in HarvestMode),
        refused=sum(creditor.refused(why) for why in UNCERTIFIED),
        binding=next((name for name in shapes if name == shape), None),
    )


def read_segment_limit(creditor: Creditor) -> SegmentLimit | None:
    """Return the lengths of the newest refusal because of too long segments, if any."""
    found = creditor.segment_limit
    return None if found is None else SegmentLimit(found.measured_ms, found.limit_ms)


def _binding(creditor: Creditor) -> Binding | None:
    found = creditor.binding
    if found is None:
        return None
    return Binding(
        shape=found.shape,
        predicted_ms=found.predicted_ms,
        bound_ms=_finite(found.upper_ms),
        delay_ms=found.delay_ms,
        target=found.target,
        target_ms=found.target_ms,
    )


def read_evidence(model: LatencyModel, shape: ShapeName, features: Shape) -> ShapeEvidence:
    """Return the evidence behind the bound of a step of `shape`, whose features are `features`."""
    named = dict(zip(SHAPE_NAMES, features, strict=True))
    found = model.evidence(**named)
    return ShapeEvidence(
        shape=shape,
        scores=found.scores,
        wanted=found.wanted,
        missing=found.missing,
        bound_ms=_finite(model.forecast(**named).upper_ms),
    )


def _finite(value_ms: float) -> float | None:
    return value_ms if math.isfinite(value_ms) else None
