"""Folders of reports are tried before a run begins."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.errors import InvalidArgument
from rose_lab.cli.out_folder import try_folder

COMMANDS = (
    ["demo", "--quick"],
    ["compare"],
    ["compare", "--virtual"],
    ["profile", "http://127.0.0.1:1"],
    ["sim", "scenario.yaml"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_report_that_cannot_be_written_is_one_sentence_and_nothing_is_built(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main([*command, "--out", "file/below"]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "rose: cannot write to --out file/below: Not a directory; "
        "name a folder that can be written\n"
    )
    assert said.out == ""
    assert main([*command, "--out", "file"]) == 2
    assert capsys.readouterr().err == "rose: --out file is a file: name a folder\n"


def test_a_folder_that_is_tried_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "there" / "a" / "b"):
        try_folder(folder)
        assert [one.name for one in tmp_path.rglob("*")] == ["there"]


def test_a_folder_on_a_disk_that_is_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(InvalidArgument, match="Read-only file system; name a folder"):
        try_folder(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
