"""Passing a step's batch to the model."""

from typing import Any

import torch
from transformers.generation.continuous_batching.model_runner import ModelRunner


class DeviceRunner(ModelRunner):  # type: ignore[misc]  # transformers ships no types
    """A stock runner whose steps leave the model's configuration alone."""

    def compute_batch(self, model: torch.nn.Module, batch_data: dict[str, Any]) -> None:
        """Compute as stock, but without the `is_causal=False` that it passes with a mask.

        A model stores the argument in its configuration until the step ends. A forward pass of its
        owner in another thread would use it, attend to future tokens, and keep it for good.
        """
        if batch_data["attention_mask"] is not None:
            del batch_data["is_causal"]
        super().compute_batch(model, batch_data)
