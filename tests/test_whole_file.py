"""A file is there whole or not at all."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rose.errors import InvalidArgument
from rose.whole_file import beside, sweep, sync_folder, write_output, write_whole


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


def test_an_output_follows_links_and_they_stay(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "it"
    link.symlink_to("again")
    (tmp_path / "again").symlink_to(target)
    for content in (b"a longer one", b"short"):
        write_output(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert [one.name for one in target.parent.iterdir()] == ["it"]


def test_an_output_goes_into_what_is_no_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, b"bytes")
    assert os.read(reader, 100) == b"bytes"
    os.close(reader)
    assert pipe.is_fifo()
    # A device of which the kernel lets nobody take the name, whatever is wrong with the code.
    ours, theirs = os.openpty()
    write_output(Path(os.ttyname(theirs)), b"bytes")
    assert os.read(ours, 100) == b"bytes"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("path", ["", "/", "folder", "nowhere/it", "name" * 100, "file/it"])
def test_an_output_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_bytes(b"old")
    with pytest.raises(InvalidArgument, match=r"^cannot write .*; name a file"):
        write_output(Path(path), b"bytes")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("path", ["stdout", "printed", "stderr"])
def test_an_output_joins_what_a_command_prints(tmp_path: Path, path: str) -> None:
    program = (
        "import sys; from pathlib import Path; from rose.whole_file import write_output\n"
        "print('before', flush=True); write_output(Path(sys.argv[1]), b'bytes\\n'); print('after')"
    )
    # As in /dev, and not there: a rename over those of a machine would harm all who use it.
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    (tmp_path / "stderr").symlink_to("/proc/self/fd/2")
    printed = tmp_path / "printed"
    with printed.open("wb") as out:
        command = [sys.executable, "-c", program, path]
        where = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        subprocess.run(command, cwd=tmp_path, env=where, stdout=out, stderr=out, check=True)
    assert printed.read_bytes() == b"before\nbytes\nafter\n"


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
