"""Facts of a model by which requests are checked before they reach its engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Limits of a model, and the tokens that end its output.

    Args:
        vocabulary: number of token ids that the model can read.
        positions: most tokens of a context; None: the model has no limit.
        eos_tokens: ids that end the model's output, from its generation config.
    """

    vocabulary: int
    positions: int | None
    eos_tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ModelFacts":
        """Read the facts of a model."""
        config = model.config.get_text_config()
        rows = model.get_input_embeddings().weight.shape[0]
        positions = getattr(config, "max_position_embeddings", None)
        generation: Any = model.generation_config
        ends = None if generation is None else generation.eos_token_id
        if ends is None:
            ends = config.eos_token_id
        listed = [] if ends is None else [ends] if isinstance(ends, int) else ends
        # A model may list ids of its tokenizer that it has no weights for.
        return cls(int(rows), positions, tuple(int(one) for one in listed if 0 <= one < rows))

    def check(self, prompt: Sequence[int], tokens: int) -> None:
        """Refuse a context that the model cannot read.

        Args:
            prompt: token ids.
            tokens: number of tokens of the prompt and its output together.

        Raises:
            InvalidArgument: a token id is not in the vocabulary, or the context is too long.
        """
        least, most = min(prompt, default=0), max(prompt, default=0)
        if least < 0 or most >= self.vocabulary:
            raise InvalidArgument(
                f"token ids must be from 0 to {self.vocabulary - 1}, "
                f"got {least if least < 0 else most}"
            )
        if self.positions is not None and tokens > self.positions:
            raise InvalidArgument(
                f"prompt and output must have at most {self.positions} tokens together, "
                f"got {tokens}"
            )
