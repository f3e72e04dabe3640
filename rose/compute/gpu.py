"""One GPU for co-serving: a stream of rose's own for each tenant, and a gate that was tested."""

import re
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
    """Return the GPU that `name` means ("cuda" is the first), None for the CPU.

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
    """A device and the tenants' streams. Streams are made here, once, before anything is parked.

    Args:
        device: holds the primary context that torch uses too.
        serving: of the highest priority.
        rollout: of the lowest.
    """

    device: CudaDevice
    serving: CudaStream
    rollout: CudaStream

    @classmethod
    def open(cls, ordinal: int) -> "Gpu":
        """Open a GPU.

        Raises:
            Unavailable: no driver, or one that is too old.
            InvalidArgument: there is no such GPU.
        """
        device = CudaDevice.open(ordinal)
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
    ) -> GateProbe:
        """Find out by trying which gates hold, open and leave serving's stream alone.

        Args:
            max_connections: `CUDA_DEVICE_MAX_CONNECTIONS`, None when it is not set.
            try_all: also KERNEL where MEMOP works.
            in_one_process: serving runs in this process too.

        Raises:
            Unavailable: a gate that was opened did not wake, so the borrower's stream is lost.
        """
        probe = probe_gates(
            self.device,
            borrower_stream=self.rollout.handle,
            serving_streams=[self.serving.handle],
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
            gate: serving and the creditor hold its other side.
            kind: as chosen by `probe`.
            window: segments that may wait in the stream; fewer, if the launch queue takes no more.
            launches: what the engine puts into the stream for a segment, at most; a graph is one.

        Raises:
            InvalidArgument: not even one segment of so many launches fits the launch queue.
        """
        if kind is GateKind.HOST:
            return SynchronousGate(gate, self.rollout)
        return StreamGate.create(
            self.device,
            gate,
            stream=self.rollout.handle,
            kind=kind,
            window=min(window, largest_window(launches)),
            launches=launches,
        )


def largest_window(launches: int) -> int:
    """Return how many segments of so many launches may wait in a stream, at least 1.

    Beyond the launch queue the driver blocks the host, which may hold the interpreter's lock.
    """
    each = launches + StreamGate.GATE_LAUNCHES
    return max(1, (StreamGate.LAUNCH_QUEUE - 1) // each)


def tested_gate(
    gpu: Gpu | None,
    gate: HostGate,
    *,
    window: int,
    launches: int = 1,  # noqa: PT028 (no test)
    in_one_process: bool = True,  # noqa: PT028
) -> tuple[BorrowerGate, GateChoice | None]:
    """Choose the borrower's gate: on a CPU the host's, on a GPU the first whose self-test passes.

    Args:
        gpu: None for a CPU.
        gate: serving and the creditor hold its other side.
        window: segments that may wait in the stream of a GPU.
        launches: as in `Gpu.borrower_gate`.
        in_one_process: serving runs in this process too; a kernel that waits is no gate where it
            does not.

    Returns:
        The gate, and on a GPU which it is and why.

    Raises:
        Unavailable: as `Gpu.probe`.
    """
    if gpu is None:
        return gate, None
    connections = read_environment().cuda_max_connections
    choice = gpu.probe(max_connections=connections, in_one_process=in_one_process).choice
    return gpu.borrower_gate(gate, choice.kind, window=window, launches=launches), choice
