"""The device codec over the fake driver: every argument reaches its kernel parameter."""

from itertools import chain
from typing import Any

import pytest

from rose._core import CudaDevice, CudaGraph, CudaStream, DeviceCodec, embedded_kernels
from rose.errors import InvalidArgument, Unavailable
from tests.fake_driver import Fake, in_child


def divisor(number: int) -> list[int]:
    """A size as kernels/box.h has it; by 1 nothing is divided."""
    if number == 1:
        return [1, 0, 0]
    shift = (number - 1).bit_length() - 1
    return [number, -(-(1 << (64 + shift)) // number), shift]


def box(
    base: int,
    *sizes: int,
    strides: tuple[int, ...] = (0, 0, 0, 1),
) -> list[int]:
    """A box as kernels take it; `sizes` are those of the last of its three inner dimensions."""
    inner = [1] * (3 - len(sizes)) + list(sizes)
    return [base, *chain.from_iterable(map(divisor, inner)), *strides]


BOX = (5, 6, 7, 1000, 100, 10, 1)  # the inner sizes, and the strides
FLAT_ARRAYS, APPLY_ARRAYS = 63, 23  # that a launch takes
RULE = (7, 8, 116, 3, 0x0001_0202_0202_0003)


def box_of_arguments(base: int) -> list[int]:
    return box(base, *BOX[:3], strides=BOX[3:])


# Each call with its arguments, and what its kernel is launched with after the stream.
CALLS: dict[str, tuple[str, dict[str, Any], str, list[int]]] = {
    "delta_pack": (
        "delta_pack",
        {
            "bits": [0x1002],
            "shadow": [0x2002],
            "width": [16],
            "count": [0x10001],
            "entries": [0x6008],
            "offsets": [0x7008],
            "digest": [0x9008],
            "bits_box": [BOX],
            "shadow_box": [(1, 1, 9, 0, 0, 0, 2)],
            "block_elements": 65_536,
            "arena": 0x3004,
            "arena_words": 0x44,
            "newest": 0x5008,
            "threshold": 0x8004,
            "ages": 0xA001,
            "age_limit": 0x77,
            "first_index": 12,
            "seed": 0x99,
        },
        "delta_pack_kernel grid 2 1 1 block 512 1 1",
        [
            *box_of_arguments(0x1002),
            *box(0x2002, 9, strides=(0, 0, 0, 2)),
            *(16, 0x10001, 65_536, 0x8004, 0xA001, 0x77, 0x3004, 0x44, 0x5008, 0, 0x6008, 0x7008),
            *(0x9008, 12, 0x99),
        ],
    ),
    "flat_pack": (
        "delta_pack",
        {
            "bits": [0x1010, 0x1020],
            "shadow": [0x2010, 0x2020],
            "width": [16, 16],
            "count": [0x4001, 0x33],
            "entries": [0x6008, 0x6018],  # two blocks after the first
            "offsets": [0x7008, 0x7018],
            "digest": [0x9008, 0x9018],
            "bits_box": [None, None],
            "shadow_box": [None, None],
            "block_elements": 16_384,
            "arena": 0x3004,
            "arena_words": 0x44,
            "newest": 0x5008,
            "threshold": 0x8004,
            "first_index": 12,
            "seed": 0x99,
        },
        "delta_pack_flat_16k_kernel grid 3 1 1 block 128 1 1",
        [
            *(2, 0x8004, 0x3004, 0x44, 0x5008, 0, 0x99),
            *(0x1010, 0x2010, 0x4001, 0, 0x6008, 0x7008, 0x9008, 12),
            *(0x1020, 0x2020, 0x33, 2, 0x6018, 0x7018, 0x9018, 12),
            *[0] * (8 * (FLAT_ARRAYS - 2)),
        ],
    ),
    "delta_apply": (
        "delta_apply",
        {
            "entries": [0x1008, 0x1018],
            "offsets": [0x2008, 0x2018],
            "payload": [0x3004, 0x3014],
            "payload_words": [0x44, 0x45],
            "weights": [0x5004, 0x5014],
            "width": [32, 16],
            "count": [0x4001, 0x33],
            "digest": [0x7008, 0x7018],
            "weights_box": [BOX, None],
            "block_elements": [16_384, 16_384],
            "bad_block": 0x6008,
            "undo": True,
        },
        "delta_apply_digest_kernel grid 3 1 1 block 128 1 1",
        [
            *(2, 16_384, 0x6008, 1),
            *(0x1008, 0x2008, 0x3004, 0x44, *box_of_arguments(0x5004), 32, 0x4001, 0, 0x7008),
            *(0x1018, 0x2018, 0x3014, 0x45, *box(0x5014, 0x33), 16, 0x33, 2, 0x7018),
            *[0] * (22 * (APPLY_ARRAYS - 2)),
        ],
    ),
    "topk_unpack": (
        "topk_unpack",
        {
            "entries": 0x1008,
            "offsets": 0x2008,
            "first_outputs": 0x3008,
            "payload": 0x4004,
            "payload_words": 0x55,
            "base": 0x6002,
            "width": 16,
            "count": 0x4000,
            "block_elements": 16_384,
            "positions": 0x7008,
            "values": 0x8002,
            "output_count": 0x99,
            "bad_block": 0xA008,
            "base_box": BOX,
        },
        "topk_unpack_kernel grid 1 1 1 block 128 1 1",
        [
            *(0x1008, 0x2008, 0x3008, 0x4004, 0x55),
            *box_of_arguments(0x6002),
            *(16, 0x4000, 16_384, 0x7008, 0x8002, 0x99, 0xA008),
        ],
    ),
    "topk_histogram": (
        "topk_histogram",
        {
            "bits": 0x1002,
            "shadow": 0x2002,
            "count": 0x33,
            "histogram": 0x4008,
            "bits_box": BOX,
            "ages": 0x5001,
            "age_limit": 9,
        },
        "topk_histogram_kernel grid 1 1 1 block 512 1 1",
        [*box_of_arguments(0x1002), *box(0x2002, 0x33), *(0x33, 0x5001, 9, 0x4008)],
    ),
    "topk_threshold": (
        "topk_threshold",
        {"histogram": 0x1008, "budget": 0x22, "threshold": 0x3004},
        "topk_threshold_kernel grid 1 1 1 block 1024 1 1",
        [0x1008, 0x22, 0x3004],
    ),
    "digest": (
        "digest",
        {
            "bits": 0x1001,
            "width": 8,
            "count": 0x22,
            "sums": 0x3008,
            "bits_box": BOX,
            "first_index": 8,
            "seed": 0x55,
        },
        "digest_kernel grid 1 1 1 block 256 1 1",
        [*box_of_arguments(0x1001), *(8, 0x22, 8, 0x55, 0x3008)],
    ),
}


def create_codec(device: CudaDevice) -> DeviceCodec | None:
    """Create the codec; in a build without device code check the error, and return None."""
    if embedded_kernels():
        return DeviceCodec.create(device)
    with pytest.raises(Unavailable, match="this build of rose has no device code"):
        DeviceCodec.create(device)
    return None


@pytest.mark.parametrize("name", CALLS)
@in_child()
def test_arguments_reach_their_kernel_parameters(fake: Fake, name: str) -> None:
    call, arguments, launched, values = CALLS[name]
    device = CudaDevice.open(0)
    codec = create_codec(device)
    if codec is None:
        return
    stream = CudaStream.create(device, highest=False)
    kernel = launched.split()[0]
    fake.arguments(kernel, [8 * len(values)])
    getattr(codec, call)(**arguments, stream=stream.handle)
    (line,) = fake.kernels()
    words = " ".join(f"{value:#x}" for value in values)
    assert line == f"{launched} shared 0 stream {stream.handle:#x} arguments {words}"


@in_child()
def test_columns_of_unequal_lengths_are_refused(fake: Fake) -> None:
    codec = create_codec(CudaDevice.open(0))
    if codec is None:
        return
    arguments = {**CALLS["flat_pack"][1], "digest": [0x9008], "stream": 0}
    with pytest.raises(InvalidArgument, match="pass one value per array: got 1 for 2 arrays"):
        codec.delta_pack(**arguments)
    assert fake.kernels() == []


@in_child()
def test_pack_is_not_captured(fake: Fake) -> None:
    device = CudaDevice.open(0)
    codec = create_codec(device)
    if codec is None:
        return
    stream = CudaStream.create(device, highest=False)
    CudaGraph.begin_capture(device, stream.handle)
    with pytest.raises(InvalidArgument, match="delta_pack cannot be captured into a graph"):
        codec.delta_pack(**CALLS["flat_pack"][1], stream=stream.handle)
    CudaGraph.end_capture(device, stream.handle)
    assert fake.kernels() == []


@in_child()
def test_graph_of_torch_frees_what_it_allocated_when_it_is_launched_again(fake: Fake) -> None:
    device = CudaDevice.open(0)
    stream = CudaStream.create(device, highest=False)
    CudaGraph.begin_capture(device, stream.handle)
    graph = CudaGraph.end_capture(device, stream.handle)
    again = CudaGraph.instantiate(device, graph.handle)
    again.launch(stream.handle)
    made = [line for line in fake.log() if line.startswith("cuGraphInstantiateWithFlags")]
    assert [line.split(")")[0].split(", ")[-1] for line in made] == ["0", "1"], made
