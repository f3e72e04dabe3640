"""The backend `rose` of vLLM's weight transfer: a running server loads a publisher's versions.

vLLM's own routes drive it: `--weight-transfer-config '{"backend": "rose"}'`, then
`/init_weight_transfer_engine`, and for each version `/start_weight_update`, `/update_weights`,
`/finish_weight_update`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rose.config import read_environment
from rose.errors import InvalidArgument, Unavailable

BACKEND: Final = "rose"
# Dtype name in a safetensors file → torch's.
_DTYPES: Final = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I8": torch.int8,
    "I32": torch.int32,
    "U8": torch.uint8,
}


Tensors: TypeAlias = dict[str, torch.Tensor]
Layout: TypeAlias = Sequence[tuple[str, str, Sequence[int]]]
"""Name, dtype as in a safetensors file, and shape of each tensor."""


class Follower(Protocol):
    """Receives a publisher's versions into tensors, as `rose.receive` does.

    A protocol, because `rose.api` is above this package and may not be imported here.
    """

    @property
    def version(self) -> int | None:
        """Number of the version in the tensors; None before the first commit."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the version in the tensors."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a newer version is ready to commit.

        Raises:
            DeadlineExceeded: no version was ready in time.
        """
        ...

    def commit(self) -> int | None:
        """Write the ready version into the tensors."""
        ...

    def close(self) -> None:
        """Stop receiving."""
        ...


Follow: TypeAlias = Callable[[str, str, Callable[[Layout], Tensors]], Follower]
"""Follows a publisher, given its address, its token, and a function from layout to tensors."""


@dataclass
class Followed(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not followed
    """The publisher to follow.

    Args:
        address: host and port of `rose.publish`, `rose publish` or `rose relay`.
        token: the publisher's token; "": the value of `ROSE_TOKEN`.
    """

    address: str = ""
    token: str = ""


@dataclass
class Wanted(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is not followed
    """The version to load.

    Args:
        version: lowest number that is accepted.
        timeout_s: longest wait for the next version, in seconds. Versions are awaited one by one,
            until one is at least `version`. The engine runs no step during a wait.
        is_only_waiting: True to load nothing into the model: the call succeeds as soon as the
            version is in the host copy. Versions arrive while the engine generates, so a caller
            that asks for this with a short `timeout_s` now and then costs the engine little time.
        is_exact: whether the call fails, and loads nothing, if the host copy has a newer version.
    """

    version: int = 1
    timeout_s: float = 30.0
    is_only_waiting: bool = False
    is_exact: bool = False


class RoseWeights(WeightTransferEngine):  # type: ignore[misc]  # vLLM is not followed
    """Keeps a host copy of a publisher's weights, and loads it into the model between two steps.

    Versions are received while the engine generates. A version is committed to the host copy only
    if its digest equals the publisher's digest. All layers are then loaded within one call, so no
    step runs a half-loaded model. On CPUs, vLLM's parameters have no memory during that call.
    """

    init_info_cls = Followed
    update_info_cls = Wanted
    follow: Follow

    def __init__(self, *parts: Any, **options: Any) -> None:
        """Called by vLLM's worker."""
        super().__init__(*parts, **options)
        self._receiver: Follower | None = None
        self._tensors: Tensors = {}
        # Version and digest in the model, for `/rose/status`; None: no version was loaded, or
        # `is_half_loaded`, because the last load failed.
        self.loaded: dict[str, Any] | None = None
        self.is_half_loaded = False
        # Called before each tensor is loaded. In a borrower the call waits while serving has the
        # device.
        self.between: Callable[[], None] = lambda: None

    def init_transfer_engine(self, init_info: Followed) -> None:
        """Start to follow a publisher. A second call follows another publisher instead.

        Raises:
            InvalidArgument: there is no token, or a tensor has a dtype that vLLM cannot load.
            Unavailable: the publisher does not answer, or has no weights yet.
        """
        token = init_info.token or read_environment().token
        if not token:
            raise InvalidArgument("the publisher's token must be in init_info or in ROSE_TOKEN")
        self.shutdown()
        self._receiver = type(self).follow(init_info.address, token, self._make_tensors)

    def _make_tensors(self, layout: Layout) -> Tensors:
        unknown = sorted({dtype for _, dtype, _ in layout} - _DTYPES.keys())
        if unknown:
            raise InvalidArgument(
                f"dtypes must be among {', '.join(_DTYPES)}, got {', '.join(unknown)}"
            )
        self._tensors = {
            name: torch.zeros(tuple(shape), dtype=_DTYPES[dtype]) for name, dtype, shape in layout
        }
        return self._tensors

    def start_weight_update(self) -> None:
        """Do nothing, because only `receive_weights` changes the model."""

    def receive_weights(self, update_info: Wanted) -> None:
        """Load the wanted version, or a newer one; or only wait for it.

        Raises:
            Unavailable: `init_transfer_engine` was not called.
            DeadlineExceeded: the version did not arrive in time; the model is unchanged.
            CorruptData: a digest differs; the model is unchanged.
        """
        receiver = self._receiver
        if receiver is None:
            raise Unavailable("call init_weight_transfer_engine first")
        while (receiver.version or 0) < update_info.version:
            receiver.wait(update_info.timeout_s)
            receiver.commit()
        if update_info.is_exact and receiver.version != update_info.version:
            raise Unavailable(
                f"version {update_info.version} was overtaken by version {receiver.version}"
            )
        if update_info.is_only_waiting:
            return
        self.loaded, self.is_half_loaded = None, True
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(self._one_by_one())
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
        self.loaded = {"version": receiver.version, "digest": receiver.digest}
        self.is_half_loaded = False

    def _one_by_one(self) -> Iterator[tuple[str, torch.Tensor]]:
        for named in self._tensors.items():
            self.between()
            yield named

    def finish_weight_update(self) -> None:
        """Do nothing, because only `receive_weights` changes the model."""

    def shutdown(self) -> None:
        """Stop following; the model keeps its weights."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()


def register(follow: Follow) -> None:
    """Register the backend with vLLM, with `follow` as its receiver. Further calls do nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        engine = type("RoseWeights", (RoseWeights,), {"follow": staticmethod(follow)})
        WeightTransferEngineFactory.register_engine(BACKEND, engine)
