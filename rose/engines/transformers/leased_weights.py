"""A borrower's parameters: views of leased slabs while steps run, and a copy on the host."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rose.engines.torch import as_tensor
from rose.engines.transformers.live_weights import LiveWeights
from rose.errors import InvalidArgument, check
from rose.executor import RolloutLane, WeightsLease
from rose.executor.weights import WeightsState


class LeasedWeights:
    """Keeps a model's weights on the host, and loads them into leased slabs on demand.

    Create this object before the model's engine, and after the model's `LiveWeights`. Buffers are
    not weights: they stay on the device. *Dormant* weights are on the host, where steps cannot use
    them. While the weights of a model on a GPU are dormant, its parameters keep shape and device,
    but have no memory.

    Args:
        model: model on one device; this object changes the memory of its parameters.
        lane: lane of the borrower that will run the model.
        live: live weights of the model, on the host; their changes are written to the slabs too.
        device: device that runs the steps; None for the model's present device.
        dormant_bytes_max: most bytes of the weights that stay on the device while they are dormant.

    Raises:
        InvalidArgument: the lane can never hold the weights and one slab of KV together, or the
            live weights are not on the host.
    """

    def __init__(
        self,
        model: nn.Module,
        lane: RolloutLane,
        *,
        live: LiveWeights | None = None,
        device: str | torch.device | None = None,
        dormant_bytes_max: int = 0,
    ) -> None:
        self._parameters = list(model.parameters())
        self._device = torch.device(device or self._parameters[0].device)
        self._host = [_on_host(one, is_pinned=self._is_apart) for one in self._parameters]
        if live is not None and not live.is_on_host:
            raise InvalidArgument(
                "live weights of a leased model must be in host memory: load them on the CPU"
            )
        self.lease = WeightsLease(
            lane,
            [_bytes_of(one) for one in self._host],
            on_state=self._show,
            dormant_bytes_max=dormant_bytes_max,
        )
        slabs = lane.slabs_max()
        if self.lease.slabs_max >= slabs:
            raise InvalidArgument(
                f"weights of {self.lease.size_bytes} bytes take {self.lease.slabs_max} slabs, but "
                f"the borrower can have {slabs} for weights and KV together: raise limit_bytes or "
                "lower the reserve"
            )
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self._device)
        self._show(WeightsState.DORMANT)
        if live is not None:
            live.mirror = self

    @property
    def _is_apart(self) -> bool:
        """True if the device cannot read the host copy."""
        return bool(self._device.type != "cpu")

    def _show(self, state: WeightsState) -> None:
        """Set the parameters' memory for `state`; called under the lease's lock."""
        for at, parameter in enumerate(self._parameters):
            if state is WeightsState.ACTIVE:
                parameter.data = self._on_device(at)
            elif self._is_apart:
                parameter.data = parameter.new_empty((), device=self._device).expand_as(parameter)
            else:
                parameter.data = self._host[at]

    def _on_device(self, at: int) -> torch.Tensor:
        """Return the view of parameter `at` in its slabs."""
        flat = as_tensor(self.lease.window_of(at), self._device)
        return flat.view(self._host[at].dtype).view(self._host[at].shape)

    def close(self) -> None:
        """Return every slab, and give the model the host copy. Call after the loop has ended."""
        self.lease.unpin()
        self.lease.close()
        for parameter, host in zip(self._parameters, self._host, strict=True):
            parameter.data = host

    # ---- the mirror of live weights -------------------------------------------------------------

    def write(self, first: int, last: int) -> None:
        """Update the slabs after elements `first` to `last` - 1 of the host copy have changed.

        Indices count over all parameters in order; `LiveWeights` requires one dtype for all.
        """
        size = self._host[0].element_size()
        self.lease.write(first * size, last * size)


def _on_host(parameter: nn.Parameter, *, is_pinned: bool) -> torch.Tensor:
    """Return a contiguous host tensor, page-locked if a device is to copy it."""
    host = parameter.data.to("cpu").contiguous()
    check(not host.is_sparse, "leased weights are dense tensors")
    return host.pin_memory() if is_pinned and not host.is_pinned() else host


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array
