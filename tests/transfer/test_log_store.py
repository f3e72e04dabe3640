"""A log on a disk: versions are there again, and the shadow moves only with what the disk took."""

import numpy as np
import pytest

from rose.errors import InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from tests.transfer.planted_disk import PlantedDisk
from tests.transfer.worker import TILE, Bits, changed, row_digest, weights

ROOMY = 1 << 20


def log_of(disk: PlantedDisk, **limits: int) -> VersionLog:
    return VersionLog(store=DiskStore(disk, bytes_max=ROOMY, memory_bytes_max=0), **limits)


def published(log: VersionLog, versions: int, first: int = 1, incarnation: int = 1) -> Bits:
    bits = weights(1)
    publisher = RowPublisher(bits, "run", incarnation, first, log, tile_elements=TILE)
    for n in range(versions):
        bits = changed(bits, n)
        publisher.publish(bits)
    return bits


def test_versions_are_there_after_the_process_ended() -> None:
    disk = PlantedDisk()
    log = log_of(disk)
    published(log, 3)
    again = log_of(PlantedDisk(disk.files))
    assert again.wait_manifests(-1, 0) == log.wait_manifests(-1, 0)
    assert again.newest_n == 4
    for one in again.wait_manifests(1, 0):
        assert again.frames(one.key) == log.frames(one.key)
    with pytest.raises(Unavailable, match="published"):
        again.snapshot(None, ())  # nobody can make one yet


def test_an_update_of_which_the_disk_lost_a_part_is_left_out() -> None:
    disk = PlantedDisk()
    published(log_of(disk), 2)
    name = "3.2.update"
    left = {**disk.files, name: disk.files[name][:-1]}
    again = log_of(PlantedDisk(left))
    assert [one.version.n for one in again.wait_manifests(-1, 0)] == [1, 2]


def test_another_incarnation_begins_above_and_drops_what_was() -> None:
    disk = PlantedDisk()
    published(log_of(disk), 3)
    log = log_of(PlantedDisk(disk.files))
    with pytest.raises(InvalidArgument, match="must have a number above"):
        published(log, 0, first=4, incarnation=2)
    assert [one.version.n for one in log.wait_manifests(-1, 0)] == [1, 2, 3, 4]
    published(log, 1, first=log.newest_n + 1, incarnation=2)
    assert [one.version.n for one in log.wait_manifests(-1, 0)] == [5, 6]


@pytest.mark.parametrize("error", [OutOfMemory, Unavailable])
def test_a_version_that_the_disk_does_not_take_leaves_log_and_shadow(
    error: type[Exception],
) -> None:
    disk = PlantedDisk()
    log = log_of(disk)
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    first = changed(weights(1), 1)
    publisher.publish(first)
    disk.room_bytes, disk.is_broken = (0, False) if error is OutOfMemory else (1 << 40, True)
    with pytest.raises(error):
        publisher.publish(changed(first, 2, share=0.5))
    disk.room_bytes, disk.is_broken = 1 << 40, False
    assert publisher.version.n == 2
    assert log.newest_n == 2
    assert log.statistics().versions == 1
    manifest = publisher.publish(changed(first, 3))
    assert manifest.base_digest == row_digest(first)
    assert np.array_equal(sorted(disk.files), ["1.1.update", "2.1.update", "3.2.update"])
