"""A file is there whole or not at all."""

from pathlib import Path

import pytest

from rose.whole_file import write_whole


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
