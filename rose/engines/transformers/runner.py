"""How a step's batch is given to the model."""

from typing import Any

import torch
from transformers.generation.continuous_batching.model_runner import ModelRunner


class DeviceRunner(ModelRunner):  # type: ignore[misc]  # transformers ships no types
    """A stock runner whose steps leave the model's configuration alone."""

    def compute_batch(self, model: torch.nn.Module, batch_data: dict[str, Any]) -> None:
        """Compute as stock, without the `is_causal=False` that it gives beside a mask.

        A model keeps what it is given in its configuration until the step ends. A pass of its
        owner in another thread would find it there, see the tokens to come, and leave it for good.
        """
        if batch_data["attention_mask"] is not None:
            del batch_data["is_causal"]
        super().compute_batch(model, batch_data)
