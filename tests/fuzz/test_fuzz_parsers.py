"""Bytes of anyone: the parsers of transfer read what was written, and refuse the rest in words."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.row_publisher import RowPublisher
from rose.transfer import Version, VersionLog, manifest_bytes
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.signing import Signing
from rose.transfer.wire import messages
from tests.fuzz import fuzz_parsers
from tests.fuzz.fuzz_parsers import KINDS, PARSERS
from tests.transfer.faults.disks import VirtualDisk


def version(n: int) -> Version:
    return Version("run", 1, n)


def written() -> dict[int, bytes]:
    """Return what the other side would write, by parser."""
    log = VersionLog()
    old = np.arange(40, dtype=np.uint16)
    publisher = RowPublisher(old, "run", 1, 4, log, tile_elements=8, signing=Signing(b"key"))
    manifest = publisher.publish(old + np.uint16(1))
    frames = {one.tile: log.chunk(manifest.key, one.tile) or b"" for one in manifest.chunks}
    disk = VirtualDisk(lambda: None)
    DiskStore(disk, bytes_max=1 << 20).put(manifest, frames)
    said = {
        "KeptHello": messages.KeptHello(b"a", b"b"),
        "HelloReply": messages.HelloReply("a", "relay", layout=manifest.layout),
        "Empty": messages.Empty(),
        "GatherWords": messages.GatherWords(b"words"),
        "ManifestsReply": messages.ManifestsReply(
            (*log.wait_manifests(-1, 0), log.snapshot(None, (0, 3))), 7
        ),
        "PartAsk": messages.PartAsk(1, 2, 1, "ab" * 32, "step 2", (0, 2)),
        "PartDigests": messages.PartDigests((0,), ((1, 2),)),
        "PartFrame": messages.PartFrame(0, b"frame"),
        "ReportRequest": messages.ReportRequest("a", 5, True, (1, 2)),
        "SnapshotRequest": messages.SnapshotRequest(5, (0, 3)),
        "WaitRequest": messages.WaitRequest(5, 100),
    }
    files = [manifest_bytes.to_bytes(manifest), disk.read(disk.names()[0])]
    return dict(enumerate([*files, *(messages.encode(said[kind.__name__]) for kind in KINDS)]))


WRITTEN = written()


def test_what_was_written_is_read_by_every_parser() -> None:
    assert len(WRITTEN) == len(PARSERS)
    for at, content in WRITTEN.items():
        assert PARSERS[at](content) is not None


@pytest.mark.parametrize("at", WRITTEN)
@given(data=st.data())
def test_damaged_bytes_are_a_value_or_refused(at: int, data: st.DataObject) -> None:
    content = bytearray(WRITTEN[at])
    for _ in range(data.draw(st.integers(1, 4)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    first, last = sorted(data.draw(st.tuples(*2 * [st.integers(0, len(content))])))
    match data.draw(st.sampled_from(("whole", "cut", "without", "twice"))):
        case "cut":
            del content[last:]
        case "without":
            del content[first:last]
        case "twice":
            content[last:last] = content[first:last]
    PARSERS[at](bytes(content))


@given(
    tile_count=st.integers(0, 6),
    count=st.integers(0, 50),
    n=st.integers(3, 6),
    at=st.integers(0, 2),
)
def test_manifests_that_cannot_be_do_not_upset_a_receiver(
    tile_count: int, count: int, n: int, at: int
) -> None:
    kind = messages.ManifestsReply
    reply = messages.decode(kind, WRITTEN[len(PARSERS) - len(KINDS) + KINDS.index(kind)])
    true = reply.manifests[at]
    digests = true.tile_digests and tuple((tile, 1) for tile in range(tile_count))
    chunks = tuple(one for one in true.chunks if one.tile < tile_count)
    false = replace(true, tile_count=tile_count, count=count, tile_digests=digests, chunks=chunks)
    fuzz_parsers.follow([replace(false, version=version(n)), false])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(content: bytes) -> None:
    fuzz_parsers.one_input(content)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fuzzing_the_parsers_for_a_while_finds_nothing(repo: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install rose-rl[fuzz]")
    for at, content in WRITTEN.items():
        (tmp_path / str(at)).write_bytes(bytes([at]) + content)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz_parsers",
            "-runs=50000",
            "-max_len=4096",
            str(tmp_path),
        ],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done 50000 runs" in done.stderr
