"""What the program of a borrower is told by whoever starts it."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class BorrowerSettings:
    """What the program is to do.

    Args:
        socket: where the device listens.
        model: a preset or a folder.
        seed: of a preset's weights and of the prompts.
        cores: the cores that are the device; empty on a GPU.
        limit_bytes: the most it may borrow.
        max_batch_tokens: most tokens in one step.
        spare_share: see `EngineConfig`.
        layers_per_segment: decoder layers between two gates.
        rollouts: generations in flight.
        prompt_tokens: length of each prompt.
        output_tokens: length of each generation.
    """

    socket: str
    model: str
    seed: int
    cores: tuple[int, ...]
    limit_bytes: int
    max_batch_tokens: int
    spare_share: float
    layers_per_segment: float
    rollouts: int
    prompt_tokens: int
    output_tokens: int

    def to_line(self) -> str:
        """Return them as the program reads them."""
        return json.dumps(asdict(self))
