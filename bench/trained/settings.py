"""Parameters of the training, and of the kept versions."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

# Incremented with every change of the code that changes the versions for equal settings.
_EDITION = 1


@dataclass(frozen=True, slots=True)
class Pretraining:
    """Pretraining on examples of the tasks.

    Args:
        steps: steps of AdamW, each with one batch of examples.
        examples: examples per batch.
        lr: largest learning rate, after the first tenth of the steps; then it falls to a tenth.
        spread: factor on the preset's initial weights, whose 0.02 is meant for wider models.
    """

    steps: int = 450
    examples: int = 64
    lr: float = 2e-3
    spread: float = 2.4


@dataclass(frozen=True, slots=True)
class Run:
    """RL from the pretrained weights, at one constant learning rate.

    Args:
        lr: learning rate of AdamW.
        steps: steps of AdamW that change the weights, each on rollouts of the version before.
        kept: number of last versions that are kept, at least two.
    """

    lr: float
    steps: int
    kept: int


@dataclass(frozen=True, slots=True)
class Point:
    """Two versions with a certain density of changes: the last of a run, and an earlier one.

    Args:
        name: the density in row names.
        run: number of the run.
        steps: steps of AdamW between the two.
    """

    name: str
    run: int
    steps: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All inputs of the versions.

    Args:
        model: preset of `rose.engines.transformers`.
        seed: seed of the initial weights, the examples and the rollouts.
        pretraining: start of every run.
        runs: runs from the pretrained weights, rounded to bf16 as in a checkpoint. It takes dozens
            of steps until larger weights round to another number; earlier steps are cheaper to
            send.
        points: pairs of versions; above 0.5 % a version takes two or three steps of AdamW, like one
            that learns several times from its rollouts.
        prompts: tasks per step.
        samples: rollouts per task, compared with each other.
        threads: threads of torch. The rounding of sums depends on it, so it is not the machine's.
    """

    model: str = "tiny-policy"
    seed: int = 7
    pretraining: Pretraining = Pretraining()
    runs: tuple[Run, ...] = (Run(1e-6, 80, 11), Run(3e-6, 36, 3), Run(1e-5, 36, 3))
    points: tuple[Point, ...] = (
        Point("0.5pct", 0, 1),
        Point("1pct", 0, 3),
        Point("2.3pct", 1, 2),
        Point("6pct", 2, 2),
    )
    prompts: int = 24
    samples: int = 8
    threads: int = 2

    def as_json(self) -> dict[str, Any]:
        return {"edition": _EDITION, **dataclasses.asdict(self)}

    def fingerprint(self) -> str:
        """Return a value that differs between settings with different versions."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
