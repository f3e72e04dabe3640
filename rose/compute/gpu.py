"""One GPU for co-serving: one stream per tenant, and a tested gate."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rose._core import (
    CudaDevice,
    CudaStream,
    GateChoice,
    GateKind,
    GateProbe,
    HostGate,
    StreamGate,
    probe_gates,
)
from rose.compute.gate import BorrowerGate, SynchronousGate
from rose.config import read_environment
from rose.errors import InvalidArgument, Unavailable


def device_ordinal(name: str) -> int | None:
    """Return the ordinal of the GPU `name` ("cuda" is 0), None for the CPU.

    Raises:
        InvalidArgument: `name` is neither "cpu", "cuda" nor "cuda:<n>".
    """
    if name == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    if match is None:
        raise InvalidArgument(f"device '{name}' is not known: use 'cpu', 'cuda' or 'cuda:<n>'")
    return int(match[1] or 0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device and its tenants' streams, created once, before any stream waits at a gate.

    Args:
        device: holds the primary context, which torch shares.
        serving: stream of the highest priority.
        rollout: stream of the lowest priority.
    """

    device: CudaDevice
    serving: CudaStream
    rollout: CudaStream

    @classmethod
    def open(cls, ordinal: int) -> "Gpu":
        """Open a GPU.

        Raises:
            Unavailable: the driver is missing or too old, or this process launches or loads kernels
                in a way that turns a closed gate into a deadlock.
            InvalidArgument: the GPU does not exist.
        """
        device = CudaDevice.open(ordinal)
        if read_environment().is_launch_blocking:
            raise Unavailable(
                "CUDA_LAUNCH_BLOCKING is set, so a launch behind a closed gate would never return: "
                "unset it"
            )
        if device.driver.loads_lazily():
            raise Unavailable(
                "kernels are loaded at their first launch, which can wait for a parked borrower: "
                "set CUDA_MODULE_LOADING=EAGER before this process uses CUDA"
            )
        return cls(
            device,
            serving=CudaStream.create(device, highest=True),
            rollout=CudaStream.create(device, highest=False),
        )

    def probe(
        self,
        *,
        max_connections: int | None,
        try_all: bool = False,
        in_one_process: bool = True,
        streams: Sequence[int] = (),
    ) -> GateProbe:
        """Test which gates hold, open, and do not block serving's streams.

        Tested are `serving`, the default stream, one of default priority as in torch's pools, and
        `streams`.

        Args:
            max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`, None if it is not set.
            try_all: test KERNEL even if MEMOP works.
            in_one_process: whether serving runs in this process too.
            streams: handles of other streams that serving uses in this process.

        Raises:
            Unavailable: an opened gate did not wake, so the borrower's stream is lost.
        """
        probe = probe_gates(
            self.device,
            borrower_stream=self.rollout.handle,
            serving_streams=[self.serving.handle, *streams],
            max_connections=max_connections,
            in_one_process=in_one_process,
            try_all=try_all,
        )
        for tried in (probe.memop, probe.kernel):
            if tried.is_stuck:
                raise Unavailable(f"{self.device.name}: {tried.why}, so nothing can be lent on it")
        return probe

    def borrower_gate(
        self, gate: HostGate, kind: GateKind, *, window: int, launches: int = 1
    ) -> BorrowerGate:
        """Return the borrower's side of `gate` for this GPU.

        Args:
            gate: the host's gate, whose other side serving and the creditor use.
            kind: the choice of `probe`.
            window: maximum waiting segments in the stream; fewer if the launch queue holds fewer.
            launches: maximum launches per segment; a graph counts as one.

        Raises:
            InvalidArgument: the launch queue cannot hold one segment of `launches` launches; the
                message has the longest one that fits.
        """
        if kind is GateKind.HOST:
            return SynchronousGate(gate, self.rollout)
        return StreamGate.create(
            self.device,
            gate,
            stream=self.rollout.handle,
            kind=kind,
            window=window,
            launches=launches,
        )


def tested_gate(
    gpu: Gpu | None,
    gate: HostGate,
    *,
    window: int,
    in_one_process: bool = True,  # noqa: PT028 (no test)
    streams: Sequence[int] = (),  # noqa: PT028
) -> tuple[BorrowerGate, GateChoice | None]:
    """Choose the borrower's gate: the host's on a CPU, the first with a passed self-test on a GPU.

    Args:
        gpu: the GPU; None for a CPU.
        gate: the host's gate, whose other side serving and the creditor use.
        window: maximum waiting segments in a GPU's stream.
        in_one_process: whether serving runs in this process too; if not, KERNEL is no gate.
        streams: as in `Gpu.probe`.

    Returns:
        The gate, and on a GPU the choice with its reason.

    Raises:
        Unavailable: as in `Gpu.probe`.
    """
    if gpu is None:
        return gate, None
    connections = read_environment().cuda_max_connections
    choice = gpu.probe(
        max_connections=connections, in_one_process=in_one_process, streams=streams
    ).choice
    return gpu.borrower_gate(gate, choice.kind, window=window), choice
