"""`rose publish`, `relay` and `receive` by a mover: whatever is killed, and when."""

import signal
from pathlib import Path

import pytest

from rose.cli.main import main
from tests.cli.weight_programs import Program, are_alike, make_checkpoint
from tests.transfer.movers.conftest import Library

TOKEN = "ab" * 32


def test_checkpoints_come_by_a_mover_through_a_relay_that_is_killed(
    library: Library, tmp_path: Path
) -> None:
    made = [make_checkpoint(tmp_path / "made" / "v0", 0)]
    for seed in (1, 2):
        made.append(make_checkpoint(tmp_path / "made" / f"v{seed}", seed, base=made[-1]))
    watched, out, kept = tmp_path / "watched", tmp_path / "out", tmp_path / "kept"
    watched.mkdir()
    environment = library.environment
    offer, plane = ["--offer", library.mover], ["--plane", library.mover]
    with Program(
        "publish", made[0], "--watch", watched, *offer, environment=environment
    ) as publisher:
        upstream = ["--upstream", publisher.wait_for("serving")["address"]]
        relaying = ["relay", *upstream, "--directory", kept, *offer, *plane]
        with Program(*relaying, environment=environment) as relay:
            address = relay.wait_for("serving")["address"]
            receiving = ["receive", "--upstream", address, "--to", out, *plane]
            with Program(*receiving, environment=environment) as receiver:
                receiver.wait_for("committed", n=1)
                assert are_alike(out, made[0])
                first = made[1].rename(watched / "v1")
                receiver.wait_for("committed", n=2)
                assert are_alike(out, first)
                relay.stop(signal.SIGKILL)
                receiver.wait_for("trouble")
                with Program(*relaying, "--listen", address, environment=environment) as heir:
                    heir.wait_for("serving")
                    second = made[2].rename(watched / "v2")
                    receiver.wait_for("committed", n=3)
                    assert are_alike(out, second)
                    receiver.stop(signal.SIGKILL)
                    with Program(*receiving, "--once", environment=environment) as again:
                        assert again.end() == (0, "")
                    assert are_alike(out, second)
                    assert heir.stop() == (0, "")
            assert publisher.stop() == (0, "")


@pytest.mark.parametrize("program", ["publish", "relay", "receive"])
def test_programs_refuse_a_mover_before_anything_is_read(
    program: str,
    stand_ins: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROSE_TOKEN", TOKEN)
    there = ["--upstream", "127.0.0.1:1"]
    arguments = {
        "publish": [str(tmp_path / "none"), "--offer", "nixl"],
        "relay": [*there, "--offer", "nixl"],
        "receive": [*there, "--to", str(tmp_path / "out"), "--plane", "nixl"],
    }[program]
    monkeypatch.setattr("rose.transfer.movers.kinds.find_spec", lambda _: None)
    assert main([program, *arguments]) == 2
    assert "pip install 'rose-rl[nixl]'" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["publish", "relay"])
def test_mover_is_not_offered_to_other_machines(
    program: str,
    stand_ins: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROSE_TOKEN", TOKEN)
    monkeypatch.setattr("rose.transfer.wire.security.check_files", lambda _: None)
    where = [str(tmp_path)] if program == "publish" else ["--upstream", "127.0.0.1:1"]
    tls = ["--tls", "a.pem", "a.key", "b.pem"]
    assert main([program, *where, "--listen", "0.0.0.0:0", *tls, "--offer", "mooncake"]) == 2
    assert "mooncake neither encrypts" in capsys.readouterr().err
