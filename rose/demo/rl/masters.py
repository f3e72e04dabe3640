"""The weights a trainer owns: fp32 masters, and what they are rounded to."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rose.errors import InvalidArgument

Bits: TypeAlias = npt.NDArray[np.uint16]


class Masters:
    """One flat fp32 row of masters under a model that runs on their rounded values.

    The parameters of the model become views of a row of their own, which always holds the masters
    rounded to bf16: what is learned is what is served. Gradients are taken at the rounded weights
    and belong to the masters (straight-through). Everything is in the order of
    `model.named_parameters()`, where tied weights come once.

    Args:
        model: in fp32 on the CPU; nobody else may replace its parameters.

    Raises:
        InvalidArgument: a parameter is not fp32 on the CPU, or there is none.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InvalidArgument(
                    f"a parameter is {parameter.dtype} on {parameter.device}: the trainer takes a "
                    "model in torch.float32 on the CPU"
                )
        if not parameters:
            raise InvalidArgument("the model has no parameters to train")
        self.row = nn.Parameter(torch.cat([one.detach().reshape(-1) for one in parameters]))
        self.row.grad = torch.zeros_like(self.row)
        self._served = torch.empty_like(self.row, requires_grad=False)
        self._rounded = torch.empty(self.row.numel(), dtype=torch.bfloat16)
        first = 0
        for parameter in parameters:
            place = slice(first, first + parameter.numel())
            parameter.data = self._served[place].view(parameter.shape)
            # Backward adds to a gradient that is there, in place: it lands in the masters' row.
            parameter.grad = self.row.grad[place].view(parameter.shape)
            parameter.requires_grad_(True)
            first += parameter.numel()
        self.round()

    @property
    def count(self) -> int:
        """How many weights there are."""
        return int(self.row.numel())

    @property
    def gradient(self) -> torch.Tensor:
        """The (n,) fp32 gradient of all masters; the model's backward adds to it."""
        gradient = self.row.grad
        if gradient is None:
            raise InvalidArgument("the gradient of the masters was taken away: zero it in place")
        return gradient

    def round(self) -> None:
        """Let the model compute with the masters as they are, rounded to nearest, ties to even."""
        with torch.no_grad():
            self._rounded.copy_(self.row)
            self._served.copy_(self._rounded)

    def bits(self) -> Bits:
        """Return the (n,) bf16 bits of the served weights, a read-only view of what they are."""
        bits: Bits = self._rounded.view(torch.uint16).numpy()
        bits.flags.writeable = False
        return bits
