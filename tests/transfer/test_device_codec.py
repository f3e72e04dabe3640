"""The device codec from Python, over the fake driver: every argument arrives where it belongs."""

import pytest

from rose._core import CudaDevice, CudaStream, DeviceCodec, embedded_kernels
from rose.errors import InvalidArgument, Unavailable
from tests.fake_driver import Fake, in_child

# Each call with its arguments, and what its kernel is launched with after the stream.
CALLS = {
    "delta_pack": (
        {
            "bits": 0x1002,
            "shadow": 0x2002,
            "count": 0x10001,
            "block_elements": 65_536,
            "arena": 0x3004,
            "arena_words": 0x44,
            "cursor": 0x5008,
            "entries": 0x6008,
            "offsets": 0x7008,
            "threshold": 0x8004,
            "digest": 0x9008,
            "first_index": 12,
            "seed": 0x99,
        },
        "delta_pack_64ki_kernel grid 2 1 1 block 512 1 1",
        "0x1002 0x2002 0x10001 0x8004 0x3004 0x44 0x5008 0x6008 0x7008 0x9008 0xc 0x99",
    ),
    "delta_apply": (
        {
            "entries": 0x1008,
            "offsets": 0x2008,
            "payload": 0x3004,
            "payload_words": 0x44,
            "weights": 0x5002,
            "count": 0x4001,
            "block_elements": 16_384,
            "bad_block": 0x6008,
            "undo": True,
        },
        "delta_apply_16ki_kernel grid 2 1 1 block 128 1 1",
        "0x1008 0x2008 0x3004 0x44 0x5002 0x4001 0x6008 0x1",
    ),
    "topk_unpack": (
        {
            "entries": 0x1008,
            "offsets": 0x2008,
            "first_outputs": 0x3008,
            "payload": 0x4004,
            "payload_words": 0x55,
            "base": 0x6002,
            "count": 0x4000,
            "block_elements": 16_384,
            "positions": 0x7008,
            "values": 0x8002,
            "output_count": 0x99,
            "bad_block": 0xA008,
        },
        "topk_unpack_16ki_kernel grid 1 1 1 block 128 1 1",
        "0x1008 0x2008 0x3008 0x4004 0x55 0x6002 0x4000 0x7008 0x8002 0x99 0xa008",
    ),
    "topk_histogram": (
        {"bits": 0x1002, "shadow": 0x2002, "count": 0x33, "histogram": 0x4008},
        "topk_histogram_kernel grid 1 1 1 block 512 1 1",
        "0x1002 0x2002 0x33 0x4008",
    ),
    "topk_threshold": (
        {"histogram": 0x1008, "budget": 0x22, "threshold": 0x3004},
        "topk_threshold_kernel grid 1 1 1 block 1024 1 1",
        "0x1008 0x22 0x3004",
    ),
    "digest": (
        {"bits": 0x1002, "count": 0x22, "sums": 0x3008, "first_index": 4, "seed": 0x55},
        "digest_kernel grid 1 1 1 block 256 1 1",
        "0x1002 0x22 0x4 0x55 0x3008",
    ),
}


def create_codec(device: CudaDevice) -> DeviceCodec | None:
    """Create it; in a build without device code see that it says so, and return None."""
    if embedded_kernels():
        return DeviceCodec.create(device)
    with pytest.raises(Unavailable, match="this build of rose has no device code"):
        DeviceCodec.create(device)
    return None


@pytest.mark.parametrize("name", CALLS)
@in_child()
def test_arguments_arrive_where_they_belong(fake: Fake, name: str) -> None:
    arguments, launched, values = CALLS[name]
    device = CudaDevice.open(0)
    codec = create_codec(device)
    if codec is None:
        return
    stream = CudaStream.create(device, highest=False)
    kernel = launched.split()[0]
    fake.arguments(kernel, [8 * len(values.split())])
    getattr(codec, name)(**arguments, stream=stream.handle)
    (line,) = fake.kernels()
    assert line == f"{launched} shared 0 stream {stream.handle:#x} arguments {values}"


@in_child()
def test_refusal_is_an_invalid_argument(fake: Fake) -> None:
    codec = create_codec(CudaDevice.open(0))
    if codec is None:
        return
    with pytest.raises(InvalidArgument, match="bits is null"):
        codec.digest(bits=0, count=1, sums=8, stream=0)
    assert fake.kernels() == []
