"""The device quantiser from Python, over the fake driver: arguments arrive where they belong."""

from typing import Any

import pytest

from rose._core import CudaDevice, CudaStream, DeviceQuantiser, embedded_kernels
from rose.errors import InvalidArgument, Unavailable
from tests.fake_driver import Fake, in_child

ARGUMENTS: dict[str, Any] = {
    "bits": 0x1002,
    "rows": 0x102,
    "cols": 0x93,
    "row_stride": 0x94,
    "to": "int8",
    "block_rows": 0x85,
    "block_cols": 0x86,
    "codes": 0x7001,
    "scales": 0x8004,
}


def create_quantiser(device: CudaDevice) -> DeviceQuantiser | None:
    """Create it; in a build without device code see that it says so, and return None."""
    if embedded_kernels():
        return DeviceQuantiser.create(device)
    with pytest.raises(Unavailable, match="this build of rose has no device code"):
        DeviceQuantiser.create(device)
    return None


@in_child()
def test_arguments_arrive_where_they_belong(fake: Fake) -> None:
    device = CudaDevice.open(0)
    quantiser = create_quantiser(device)
    if quantiser is None:
        return
    stream = CudaStream.create(device, highest=False)
    fake.arguments("quantise_cta_kernel", [72])
    quantiser.quantise(**ARGUMENTS, stream=stream.handle)
    (line,) = fake.kernels()
    assert line == (
        f"quantise_cta_kernel grid 4 1 1 block 256 1 1 shared 0 stream {stream.handle:#x} "
        "arguments 0x1002 0x102 0x93 0x94 0x85 0x86 0x7001 0x8004 0x1"
    )


@in_child()
def test_refusal_is_an_invalid_argument(fake: Fake) -> None:
    quantiser = create_quantiser(CudaDevice.open(0))
    if quantiser is None:
        return
    with pytest.raises(InvalidArgument, match="scales must not be null"):
        quantiser.quantise(**{**ARGUMENTS, "scales": 0}, stream=0)
    with pytest.raises(InvalidArgument, match="to 'fp4': choose fp8 or int8"):
        quantiser.quantise(**{**ARGUMENTS, "to": "fp4"}, stream=0)
    assert fake.kernels() == []
