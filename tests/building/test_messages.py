"""Modules of messages are made in a build, or are missing on purpose."""

from pathlib import Path

import pytest

from tests.building.project import SETUP

MADE = Path("rose/transfer/wire/proto/weights_pb2.py")


def test_messages_become_modules_where_their_compiler_is(tmp_path: Path) -> None:
    SETUP.compile_messages(tmp_path)
    made = tmp_path / MADE
    assert "DESCRIPTOR" in made.read_text()
    before = made.stat().st_mtime_ns
    SETUP.compile_messages(tmp_path)
    assert made.stat().st_mtime_ns == before


@pytest.mark.parametrize("mode", [None, "", "on"])
def test_without_their_compiler_a_build_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    monkeypatch.setattr(SETUP.importlib.util, "find_spec", lambda _: None)
    if mode is not None:
        monkeypatch.setenv("ROSE_MESSAGES", mode)
    with pytest.raises(SystemExit, match="pip install 'grpcio-tools"):
        SETUP.compile_messages(tmp_path)


def test_they_may_be_left_out_on_purpose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETUP.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("ROSE_MESSAGES", "off")
    SETUP.compile_messages(tmp_path)
    assert not (tmp_path / MADE).exists()
