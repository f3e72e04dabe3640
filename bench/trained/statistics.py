"""Statistics of a step's changes: number, tensors, exponents, and sizes in ULP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from bench.entropy import class_entropy_bytes, exponents, iid_entropy_bytes, steps

Bits = npt.NDArray[np.uint16]

# The first of these words that is in a parameter's name determines its kind.
_KINDS = {"norm": "norm", "embed": "embed", "lm_head": "head", "attn": "attn", "mlp": "mlp"}
_ULP_GROUPS = {"1": (1, 1), "2": (2, 2), "3_to_4": (3, 4), "5_or_more": (5, 1 << 15)}


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a tensor in the flat row of all weights."""

    kind: str
    where: slice


def spans_of(model: nn.Module) -> list[Span]:
    """Return the tensors of a model, in the order of `named_parameters()`."""
    spans, first = [], 0
    for name, parameter in model.named_parameters():
        kind = next(kind for word, kind in _KINDS.items() if word in name)
        spans.append(Span(kind, slice(first, first + parameter.numel())))
        first += parameter.numel()
    return spans


def step_statistics(new: Bits, old: Bits, spans: Sequence[Span]) -> dict[str, Any]:
    """Return the log entry of a step.

    Args:
        new: (n,) bf16 bits.
        old: (n,) bf16 bits.
        spans: tensors of the row.

    Returns:
        `density`, of all and by kind of tensor; `exponents`, each as [elements, changed]; `ulp`,
        the shares of the changes by size; and the two bounds in bytes per change. The shares and
        bounds are missing without a change.
    """
    is_changed = new != old
    changed = int(is_changed.sum())
    statistics: dict[str, Any] = {
        "changed": changed,
        "density": changed / len(new),
        "density_by_kind": _density_by_kind(is_changed, spans),
        "exponents": _by_exponent(old, is_changed),
    }
    if changed:
        statistics |= {
            "ulp": _by_ulp(steps(new, old)[is_changed]),
            "iid_entropy_bytes": iid_entropy_bytes(new, old),
            "class_entropy_bytes": class_entropy_bytes(new, old),
        }
    return statistics


def _density_by_kind(is_changed: npt.NDArray[np.bool_], spans: Sequence[Span]) -> dict[str, float]:
    counts: dict[str, list[int]] = {}
    for span in spans:
        row = counts.setdefault(span.kind, [0, 0])
        row[0] += span.where.stop - span.where.start
        row[1] += int(is_changed[span.where].sum())
    return {kind: changed / elements for kind, (elements, changed) in counts.items()}


def _by_exponent(old: Bits, is_changed: npt.NDArray[np.bool_]) -> dict[str, list[int]]:
    old_exponents = exponents(old)
    elements = np.bincount(old_exponents)
    changed = np.bincount(old_exponents[is_changed], minlength=len(elements))
    return {str(one): [int(elements[one]), int(changed[one])] for one in np.flatnonzero(elements)}


def _by_ulp(step: Bits) -> dict[str, float]:
    size = np.abs(step.view(np.int16).astype(np.int32))
    return {
        name: float(((size >= low) & (size <= high)).mean())
        for name, (low, high) in _ULP_GROUPS.items()
    }
