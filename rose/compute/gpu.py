"""One GPU for co-serving: a stream for each tenant, and a gate that passed its self-test."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rose._core import (
    CudaDevice,
    CudaDriver,
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
    """Return the ordinal of a GPU, 0 for "cuda", or None for "cpu".

    Raises:
        InvalidArgument: `name` is neither "cpu", "cuda" nor "cuda:<n>".
    """
    if name == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    if match is None:
        raise InvalidArgument(f"device must be 'cpu', 'cuda' or 'cuda:<n>', got '{name}'")
    return int(match[1] or 0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with the streams of both tenants, created before any stream waits at a gate.

    Args:
        device: the GPU's primary context, which torch uses too.
        serving: serving's stream, of the highest priority.
        rollout: the borrower's stream, of the lowest priority.
    """

    device: CudaDevice
    serving: CudaStream
    rollout: CudaStream

    @classmethod
    def open(cls, ordinal: int) -> "Gpu":
        """Open a GPU.

        Raises:
            Unavailable: the driver is missing or too old, or an environment variable makes launches
                wait, so that a closed gate would be a deadlock.
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
                "CUDA loads kernels lazily, so a first launch can wait for a parked borrower: set "
                "CUDA_MODULE_LOADING=EAGER before this process uses CUDA"
            )
        return cls(
            device,
            serving=CudaStream.create(device, highest=True),
            rollout=CudaStream.create(device, highest=False),
        )

    @classmethod
    def of_serving(cls, uuid: str) -> "Gpu":
        """Open the GPU on which serving runs in another process, whatever its ordinal is here.

        Raises:
            Unavailable: this process does not see the GPU, is a client of MPS, or as in `open`.
        """
        driver = CudaDriver.open()
        seen = [driver.facts(ordinal).uuid for ordinal in range(driver.device_count())]
        if uuid not in seen:
            raise Unavailable(
                f"serving's GPU has UUID {uuid}, but this process sees {', '.join(seen)}: set "
                "CUDA_VISIBLE_DEVICES here to serving's GPU"
            )
        gpu = cls.open(seen.index(uuid))
        gpu.check_other_process()
        return gpu

    def check_other_process(self) -> None:
        """Raise if serving and a borrower in another process cannot share this GPU.

        Raises:
            Unavailable: this process is a client of MPS.
        """
        if self.device.facts.uses_mps:
            # The work of all clients belongs to the server of MPS. So the end of a killed borrower
            # does not prove that its kernels ended, and may damage serving's context.
            raise Unavailable(
                f"{self.device.name} runs under MPS, where a borrower in another process cannot be "
                "stopped safely: stop nvidia-cuda-mps-control, or add the borrower to serving's "
                "process with CoServing.rollout"
            )

    def probe(
        self,
        *,
        max_connections: int | None,
        try_all: bool = False,
        in_one_process: bool = True,
        streams: Sequence[int] = (),
    ) -> GateProbe:
        """Test which kinds of gate stop the borrower, open again, and never block serving.

        Four sorts of stream must not be blocked: `serving`, the default stream, a stream of default
        priority such as those of torch, and `streams`.

        Args:
            max_connections: value of `CUDA_DEVICE_MAX_CONNECTIONS`; None if it is not set.
            try_all: whether to test KERNEL even if MEMOP works.
            in_one_process: whether serving runs in this process too.
            streams: handles of other streams that serving uses in this process.

        Raises:
            Unavailable: a gate was opened but the borrower's stream did not continue, so that
                stream is lost.
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
        """Return the borrower's interface to `gate` for this GPU.

        Args:
            gate: gate that serving and the creditor open and close.
            kind: kind of gate that `probe` chose.
            window: largest number of segments that wait in the stream; fewer are used if the launch
                queue has no room for them.
            launches: largest number of launches per segment; a graph counts as one launch.

        Raises:
            InvalidArgument: the launch queue has no room for one segment of `launches` launches;
                the message has the number that fits.
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
    """Choose the borrower's gate: on a CPU `gate` itself, on a GPU the first kind that works.

    Args:
        gpu: the GPU; None for a CPU.
        gate: gate that serving and the creditor open and close.
        window: largest number of segments that wait in a GPU's stream.
        in_one_process: whether serving runs in this process too; otherwise KERNEL is not allowed.
        streams: handles of other streams that serving uses in this process.

    Returns:
        The borrower's interface to the gate; and on a GPU the chosen kind with its reason, else
        None.

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
