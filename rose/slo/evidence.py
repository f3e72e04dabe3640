"""Collect evidence before the first certificate: run each step shape until it has a bound."""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from rose._core import LatencyModel
from rose.errors import DeadlineExceeded

Shape: TypeAlias = tuple[float, float, float]
"""Numbers of decoding sequences, context tokens and prefill tokens of a step."""

SHAPE_NAMES: Final = ("decode_sequences", "context_tokens", "prefill_tokens")

# One round suffices if step times do not drift. Further rounds make up for steps above their bound,
# because each such step raises the number of runs that a bound needs.
_ROUNDS_MAX: Final = 4


def missing_runs(model: LatencyModel, shape: Shape) -> int:
    """Return the number of runs after which `shape` has a bound; 0 if it already has one."""
    return int(model.evidence(**dict(zip(SHAPE_NAMES, shape, strict=True))).missing)


def collect_evidence(
    model: LatencyModel, shapes: Iterable[Shape], run: Callable[[Shape], None]
) -> None:
    """Call `run` with each shape until `model` has a bound for it.

    Args:
        model: model that learns from the runs.
        shapes: step shapes.
        run: function that runs one step of a shape and lets `model` observe the step's time.

    Raises:
        DeadlineExceeded: four rounds of runs gave no bound.
    """
    for shape in shapes:
        runs_max = _ROUNDS_MAX * missing_runs(model, shape)
        for _ in range(runs_max):
            if missing_runs(model, shape) == 0:
                break
            run(shape)
        if missing_runs(model, shape) > 0:
            raise DeadlineExceeded(
                f"{runs_max} runs of the step shape {shape} gave no bound: their times vary too "
                f"much, or `run` does not let the model observe them"
            )
