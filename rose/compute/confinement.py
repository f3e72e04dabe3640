"""The borrower's streams: one on the whole device, and one on each share of its multiprocessors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rose._core import CudaDevice, CudaStream, GreenContext
from rose.errors import InvalidArgument, OutOfMemory, Unavailable

# Multiprocessors of the shares. More of them would be more contexts for little choice.
SHARES: Final = (16, 32, 64)


class Confinement:
    """Says which stream confines the borrower to how much of the device.

    All streams are made at the start: making one while a borrower is parked can wait for it. A
    share keeps nothing free for the borrower and takes nothing from serving, which stays on the
    primary context with its graphs; memory bandwidth is not shared out at all. Immutable.

    Args:
        plain: the stream on the whole device, of the lowest priority.
        streams: by share.
        why_not: why shares are missing, one sentence; "" when none is.
    """

    def __init__(
        self, plain: CudaStream, streams: Mapping[int, CudaStream], *, why_not: str = ""
    ) -> None:
        self.plain = plain
        self.why_not = why_not
        self._streams = dict(sorted(streams.items()))

    @classmethod
    def open(cls, device: CudaDevice, plain: CudaStream, *, shares: Sequence[int]) -> "Confinement":
        """Make a green context and a stream for each share that the driver gives.

        One that it refuses is left out, and `why_not` says why.
        """
        made = {share: _create(device, share) for share in shares}
        streams = {share: one for share, one in made.items() if isinstance(one, CudaStream)}
        refused = [one for one in made.values() if isinstance(one, str)]
        return cls(plain, streams, why_not=refused[-1] if refused else "")

    @property
    def shares(self) -> tuple[int, ...]:
        """What `stream_for` can choose from, ascending."""
        return tuple(self._streams)

    def stream_for(self, multiprocessors: int | None) -> CudaStream:
        """Return the stream of the largest share that is not larger.

        Args:
            multiprocessors: None for the whole device. Below the smallest share it is the smallest;
                without any share it is the whole device.
        """
        if multiprocessors is None or not self._streams:
            return self.plain
        fitting = [share for share in self._streams if share <= multiprocessors]
        return self._streams[fitting[-1] if fitting else self.shares[0]]

    def only(self, is_usable: Callable[[CudaStream], str]) -> "Confinement":
        """Return the same without the shares whose stream fails.

        Args:
            is_usable: "" for a stream that is, else why not, one sentence.
        """
        kept, why_not = {}, self.why_not
        for share, stream in self._streams.items():
            why = is_usable(stream)
            if why:
                why_not = f"no share of {share} multiprocessors: {why}"
            else:
                kept[share] = stream
        return Confinement(self.plain, kept, why_not=why_not)


def _create(device: CudaDevice, share: int) -> CudaStream | str:
    """Return a stream on a share of the device, or why there is none."""
    try:
        context = GreenContext.create(device, multiprocessors=share)
        return context.create_stream(highest=False)
    except (InvalidArgument, OutOfMemory, Unavailable) as error:
        return f"no share of {share} multiprocessors: {error}"
