"""Passes a step's batch to the model."""

from typing import Any

import torch
from transformers.generation.continuous_batching.model_runner import ModelRunner


class DeviceRunner(ModelRunner):  # type: ignore[misc]  # transformers ships no types
    """A stock runner whose steps do not change the model's configuration."""

    def compute_batch(self, model: torch.nn.Module, batch_data: dict[str, Any]) -> None:
        """Compute as stock code does, but pass no `is_causal=False` together with a mask.

        A model stores this argument in its configuration until the step ends. A forward pass of
        the model in another thread would read the argument there: it would attend to future
        tokens, and could leave the argument in the configuration for ever.
        """
        if batch_data["attention_mask"] is not None:
            del batch_data["is_causal"]
        super().compute_batch(model, batch_data)
