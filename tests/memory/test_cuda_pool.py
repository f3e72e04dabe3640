"""The arbiter over device memory: the same laws, and bytes that only the device may touch.

The fake driver's device memory is memory of the host, so here its bytes can be looked at.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rose._core import Arbiter, CudaDevice, ManualClock
from rose.errors import RoseError, Unavailable
from tests.fake_driver import Fake, in_child

PAGE = 2 << 20


def create(device: CudaDevice, **changes: Any) -> Arbiter:
    usual: dict[str, Any] = {
        "slab_bytes": PAGE,
        "slab_count": 6,
        "header_slabs": 2,
        "object_bytes_max": 2 * PAGE,
        "clock": ManualClock(),
    }
    return Arbiter.create(**{**usual, **changes}, device=device)


@contextmanager
def nothing_left(fake: Fake) -> Iterator[None]:
    yield
    assert fake.live() == []
    assert fake.faults() == []


@in_child()
def test_arbiter_keeps_its_device(fake: Fake) -> None:
    with nothing_left(fake):
        device = CudaDevice.open(0)
        arbiter = create(device)
        del device
        assert fake.live() == [
            "contexts 1",
            "handles 4",
            "reservations 1",
            "mappings 4",
            "streams 1",
        ]
        del arbiter


@in_child()
def test_nothing_leaks_when_the_nth_driver_call_fails(fake: Fake) -> None:
    device = CudaDevice.open(0)
    raised = n = 0
    while True:
        n += 1
        fake.reset()
        fake.fail("*", nth=n, code=2)
        try:
            create(device)
        except RoseError:
            raised += 1
        assert (fake.live(), fake.faults(), fake.depth()) == (["contexts 1"], [], 0), f"call {n}"
        if fake.is_fail_pending():
            break
    # A push, an exchange of the capture mode and a call; create, map and set access; and of the
    # header: priorities, a stream, the memset and a look at the stream, each with these two.
    assert raised == 3 * (1 + 1) + 4 * (3 + 4) + 4 * 3


@in_child(FAKECUDA_ATTRIBUTES="102=0")
def test_device_without_virtual_memory_is_refused(fake: Fake) -> None:
    with pytest.raises(Unavailable, match=r"Fake GPU 0\) has no virtual memory management"):
        create(CudaDevice.open(0))
