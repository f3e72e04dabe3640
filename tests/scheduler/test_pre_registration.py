"""Of what was said before a worker is registered, the newest is kept."""

from hypothesis import given
from hypothesis import strategies as st

from rose.scheduler.validation import PreRegistrationBuffer
from rose.scheduler.worker import LeaseChanged, VersionCommitted, WorkerLost

LEASES = st.builds(LeaseChanged, st.just(1), st.integers(0, 3), st.integers(0, 9), st.just(0.0))


@given(st.lists(LEASES))
def test_the_lease_of_the_highest_epoch_is_kept_and_of_those_the_last(leases) -> None:
    buffer = PreRegistrationBuffer()
    for lease in leases:
        assert buffer.keep(lease)
    newest = max(
        enumerate(leases), key=lambda one: (one[1].lease_epoch, one[0]), default=(0, None)
    )[1]
    assert buffer.take(1) == ([] if newest is None else [newest])


def test_the_last_version_is_kept_beside_the_lease_and_nothing_of_who_was_lost() -> None:
    buffer = PreRegistrationBuffer()
    lease = LeaseChanged(1, 2, 9, 0.0)
    for version in (3, 2):  # It tried version 3, and went back.
        assert buffer.keep(VersionCommitted(1, version, True, 0.0))
    assert buffer.keep(lease)
    assert buffer.take(1) == [VersionCommitted(1, 2, True, 0.0), lease]
    assert buffer.keep(lease)
    assert not buffer.keep(WorkerLost(1, "gone"))
    assert buffer.take(1) == []
