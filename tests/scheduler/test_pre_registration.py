"""Of what was said before a worker is registered, the newest is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import Unavailable
from rose.scheduler.arrivals import PreRegistrationBuffer
from rose.scheduler.worker import GrantChanged, VersionCommitted, WorkerLost

LEASE = GrantChanged(1, 2, 9, 0.0)
LEASES = st.builds(GrantChanged, st.just(1), st.integers(0, 3), st.integers(0, 9), st.just(0.0))


@given(st.lists(LEASES))
def test_the_lease_of_the_highest_epoch_is_kept_and_of_those_the_last(leases) -> None:
    buffer = PreRegistrationBuffer()
    for lease in leases:
        assert buffer.keep(lease)
    newest = max(
        enumerate(leases), key=lambda one: (one[1].grant_epoch, one[0]), default=(0, None)
    )[1]
    assert buffer.take(1) == ([] if newest is None else [newest])


def test_the_last_version_is_kept_beside_the_lease() -> None:
    buffer = PreRegistrationBuffer()
    for version in (3, 2):  # It tried version 3, and went back.
        assert buffer.keep(VersionCommitted(1, version, True, 0.0))
    assert buffer.keep(LEASE)
    assert buffer.take(1) == [VersionCommitted(1, 2, True, 0.0), LEASE]
    assert buffer.take(1) == []


def test_a_worker_that_was_lost_before_its_registration_is_refused_once() -> None:
    buffer = PreRegistrationBuffer()
    assert buffer.keep(LEASE)
    assert buffer.keep(WorkerLost(1, "its address is dead"))
    with pytest.raises(Unavailable, match="1 was lost before its registration: its address"):
        buffer.take(1)
    assert buffer.take(1) == []


def test_another_stream_after_a_loss_counts_and_only_it() -> None:
    buffer = PreRegistrationBuffer()
    buffer.keep(VersionCommitted(1, 2, True, 0.0))
    buffer.keep(WorkerLost(1, "gone"))
    buffer.keep(LEASE)
    assert buffer.take(1) == [LEASE]


def test_a_loss_that_is_repeated_says_nothing_of_the_next_worker_with_the_number() -> None:
    buffer = PreRegistrationBuffer()
    buffer.take(1)
    buffer.lose(1)
    assert not buffer.keep(WorkerLost(1, "gone"))
    assert buffer.take(1) == []
    buffer.lose(1)
    buffer.keep(LEASE)  # The next one has begun, and ends.
    buffer.keep(WorkerLost(1, "gone again"))
    with pytest.raises(Unavailable, match="gone again"):
        buffer.take(1)
