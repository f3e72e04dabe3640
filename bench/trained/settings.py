"""What is trained, and which versions of it are kept."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

# One more with every change of the code that would give other versions for equal settings.
_EDITION = 1


@dataclass(frozen=True, slots=True)
class Pretraining:
    """How the model learns its tasks from examples.

    Args:
        steps: of AdamW, each with one batch of examples.
        examples: in a batch.
        lr: at its highest, after the first tenth of the steps; from there it falls to a tenth.
        spread: the first weights are so many times larger than the preset's, whose 0.02 is meant
            for models that are wider than this one.
    """

    steps: int = 450
    examples: int = 64
    lr: float = 2e-3
    spread: float = 2.4


@dataclass(frozen=True, slots=True)
class Run:
    """RL from the pretrained weights, at one constant learning rate.

    Args:
        lr: of AdamW.
        steps: of AdamW that change the weights, each on rollouts of the version before it.
        kept: of the last versions, so many are kept, at least two.
    """

    lr: float
    steps: int
    kept: int


@dataclass(frozen=True, slots=True)
class Point:
    """Two versions that differ at about some density: the last of a run, and one before it.

    Args:
        name: the density as rows have it.
        run: number of the run.
        steps: how many steps of AdamW lie between the two.
    """

    name: str
    run: int
    steps: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the versions depend on.

    Args:
        model: a preset of `rose.engines.transformers`.
        seed: of its first weights, the examples and the rollouts.
        pretraining: where every run starts from.
        runs: each from the pretrained weights, rounded to bf16 as a checkpoint is. It takes dozens
            of steps until the larger weights have drifted to where they round to another number;
            before that, steps are cheaper to send than they will be.
        points: pairs of versions; above 0.5 % a version takes two or three steps of AdamW, as one
            does that learns more than once from its rollouts.
        prompts: tasks of one step.
        samples: rollouts of each task, compared with each other.
        threads: of torch; sums are rounded by how they are split, so it is not the machine's.
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
        """Return what differs for settings that would give other versions."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
