"""A file is there whole or not at all."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rose.whole_file import beside, lock, sweep, sync_folder, write_whole
from tests.forks import beside_helper
from tests.waiting import LONG_S


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "it"
    for content in (b"a longer one", b"short"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "it"):
        with pytest.raises((IsADirectoryError, FileNotFoundError)):
            write_whole(path, b"bytes")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_the_old_file_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "it"
    write_whole(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rose.whole_file.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_made_beside_appears_once_it_is_whole(tmp_path: Path, is_folder: bool) -> None:
    path = tmp_path / "it"
    for content in (b"unfinished", b"whole"):
        with contextlib.suppress(ZeroDivisionError), beside(path, is_folder=is_folder) as place:
            (place / "part" if is_folder else place).write_bytes(content)
            assert not path.exists()
            assert content == b"whole" or 1 / 0
    (found,) = (one for one in tmp_path.rglob("*") if one.is_file())
    assert found == (path / "part" if is_folder else path)
    assert found.read_bytes() == b"whole"


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "it", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"made at the end of the link", b"replaced there"):
        write_whole(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert [one.name for one in target.parent.iterdir()] == ["it"]


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_written_and_stays(tmp_path: Path, is_linked: bool) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(OSError, match="No such device"):  # Nobody reads it.
        write_whole(path, b"lost")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(path, b"one", b"two")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.read(reader, 100) == b"onetwo"
    os.close(reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_written_and_stays(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        null.write_bytes(b"")
    except PermissionError:
        pytest.skip("no devices may be made here")
    write_whole(null, b"gone")
    assert stat.S_ISCHR(null.stat().st_mode)


@pytest.mark.parametrize("name", ["stdout", "/proc/self/fd/1", "/dev/fd/1"])
@pytest.mark.parametrize("is_file", [False, True])
def test_standard_output_keeps_what_was_printed(tmp_path: Path, name: str, is_file: bool) -> None:
    program = (
        "import sys; from pathlib import Path; from rose.whole_file import write_whole;"
        "print('before'); write_whole(Path(sys.argv[1]), b'it\\n'); print('after')"
    )
    # As /dev/stdout is, which a broken writer would take from everybody on this machine.
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-c", program, str(tmp_path / name)]
    out = tmp_path / "out"
    if is_file:
        with out.open("wb") as file:
            subprocess.run(command, stdout=file, check=True)
    else:
        out.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert out.read_bytes() == b"before\nit\nafter\n"


@pytest.mark.parametrize("path", ["", "/", "."])
def test_a_folder_is_no_place_for_a_file(path: str) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(Path(path), b"bytes")


def test_only_files_that_were_begun_beside_are_swept(tmp_path: Path) -> None:
    begun = tmp_path / ".it.0123456789abcdef"
    others = [
        tmp_path / name
        for name in ("it", ".it.0123456789abcde", ".it.0123456789abcdefa", ".its.0123456789abcdef")
    ]
    for one in (begun, *others):
        one.write_bytes(b"bytes")
    sweep(tmp_path / "it")
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO, errno.ENOSPC])
def test_a_folder_that_has_no_sync_is_no_failure_and_a_broken_disk_is(
    tmp_path: Path, monkeypatch, code: int
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(code, "no")

    sync_folder(tmp_path)
    monkeypatch.setattr("rose.whole_file.os.fsync", refuse)
    is_failure = code in {errno.EIO, errno.ENOSPC}
    with pytest.raises(OSError, match="no") if is_failure else contextlib.nullcontext():
        sync_folder(tmp_path)


HOLDING = """
import sys
from pathlib import Path
from rose.whole_file import lock

held = lock(Path(sys.argv[1]))
"""


def test_a_lock_ends_with_its_process_though_a_forked_child_has_the_file_open(tmp_path) -> None:
    path = tmp_path / "lock"
    with beside_helper(HOLDING, path) as holder:
        with pytest.raises(BlockingIOError):
            lock(path)
        holder.kill()
        holder.wait(LONG_S)
        lock(path).close()


def test_a_refused_caller_of_the_same_process_leaves_the_lock_in_place(tmp_path) -> None:
    path = tmp_path / "lock"
    other = f"from pathlib import Path; from rose.whole_file import lock; lock(Path({str(path)!r}))"
    with lock(path):
        with pytest.raises(BlockingIOError):
            lock(path)
        tried = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
        assert "BlockingIOError" in tried.stderr
    lock(path).close()
