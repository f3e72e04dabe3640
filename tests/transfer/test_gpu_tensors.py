"""Operations on tensors of a GPU, with a stand-in for the GPU: its stream, and overlaps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec import operations
from rose.transfer.codec.backend import HostCodec
from rose.transfer.codec.operations import digest, topk_pack, topk_unpack
from rose.transfer.codec.tensor import bits_of

torch = pytest.importorskip("torch")
pytest.importorskip("rose.kernels.codec")


class OnCpu:
    """The codec of the host behind the calls to that of a GPU; notes the stream of each call."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.streams: list[Any] = []

    @contextmanager
    def on_stream(self, stream: Any, _: Any) -> Iterator[None]:
        self.stream = stream
        yield
        self.stream = None

    def __getattr__(self, name: str) -> Any:
        self.streams.append(self.stream)
        return getattr(HostCodec(isa=None), name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> OnCpu:
    """Return a codec to which every tensor is on the GPU cuda:0."""
    stand_in = OnCpu()

    def on_gpu(*args: Any, **options: Any) -> Any:
        return bits_of(*args, **options)._replace(device="cuda:0")

    class Bits(np.ndarray):
        """An array that has a device, as a tensor of torch has."""

        device = torch.device("cuda", 0)

    def with_device(*args: Any, **options: Any) -> Any:
        seen = on_gpu(*args, **options)
        return seen._replace(bits=seen.bits.view(Bits))

    monkeypatch.setattr(operations, "bits_of", with_device)
    monkeypatch.setattr(operations, "is_units", lambda _tensor: False)  # of the host
    monkeypatch.setattr("rose.kernels.codec.gpu_codec", lambda _: stand_in)
    monkeypatch.setattr("rose.kernels.streams.on_stream", stand_in.on_stream)
    return stand_in


def test_every_operation_is_queued_on_the_stream_of_the_caller(gpu: OnCpu) -> None:
    old = np.arange(90, dtype=np.uint16)
    new, shadow = old + np.uint16(7), old.copy()
    delta = delta_pack(new, shadow, stream=4711)
    delta_apply(shadow, delta, undo=True, stream=4711)
    delta_pack({"w": new}, {"w": shadow}, stream=4711)
    delta_apply({"w": shadow}, {"w": delta}, undo=True, stream=4711)
    topk_pack(new, shadow, budget=3, stream=4711)
    topk_unpack(delta, old, stream=4711)
    digest(new, stream=4711)
    # Packing by a budget calls the codec twice.
    assert gpu.streams == [4711] * 8


def test_shadow_that_overlaps_new_is_refused(gpu: OnCpu) -> None:
    whole = np.zeros((8, 8), np.uint16)
    delta_pack(whole[:, :4], whole[:, 4:])
    gpu.streams.clear()
    with pytest.raises(InvalidArgument, match="new and shadow overlap in memory"):
        delta_pack(whole[:, :4], whole[:, 3:7])
    assert gpu.streams == []
