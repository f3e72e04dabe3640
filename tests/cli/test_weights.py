"""`rose publish` and `rose receive`: checkpoints that keep up, whatever is killed and when."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from rose.cli.main import main
from tests.checkpoints.mapped import mapped
from tests.cli.weight_programs import Program, are_alike, make_checkpoint
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl

KEY = "ab" * 32


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    made = [make_checkpoint(tmp_path / "made" / "v0", 0)]
    for seed in (1, 2, 3):
        made.append(make_checkpoint(tmp_path / "made" / f"v{seed}", seed, base=made[-1]))
    (tmp_path / "watched").mkdir()
    return made


def move_in(checkpoint: Path, tmp_path: Path, name: str | None = None) -> Path:
    return checkpoint.rename(tmp_path / "watched" / (name or checkpoint.name))


def test_receiver_keeps_up_with_a_folder_of_checkpoints(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    watched, out = tmp_path / "watched", tmp_path / "out"
    signed = {"ROSE_MANIFEST_KEY": KEY}
    trace = ["--timeline", tmp_path / "publisher.json"]
    other_trace = ["--timeline", tmp_path / "receiver.json"]
    with Program(
        "publish", checkpoints[0], "--watch", watched, *trace, environment=signed
    ) as publisher:
        address = publisher.wait_for("serving")["address"]
        upstream = ["--upstream", address, "--to", out, "--metrics", "127.0.0.1:0"]
        with Program("receive", *upstream, *other_trace, environment=signed) as receiver:
            metrics = receiver.wait_for("metrics")["address"]
            assert receiver.wait_for("committed", n=1)["is_snapshot"]
            assert are_alike(out, checkpoints[0])
            for n, checkpoint in enumerate(checkpoints[1:3], start=2):
                inside = move_in(checkpoint, tmp_path)
                published = publisher.wait_for("published", n=n)
                committed = receiver.wait_for("committed", n=n)
                assert committed["digest"] == published["digest"]
                assert not committed["is_snapshot"]
                assert are_alike(out, inside)
            figures = scraped(metrics)
            assert figures['rose_transfer_committed_total{role="receiver"}'] == 3
            assert figures['rose_transfer_version{role="receiver"}'] == 3
            assert figures['rose_transfer_pause_seconds_count{role="receiver"}'] == 3
            assert figures['rose_transfer_lag_versions{role="receiver"}'] == 0
            assert receiver.stop(signal.SIGINT) == (0, "")
        assert publisher.stop() == (0, "")
    assert receiver.events[-1]["event"] == "ended"
    spans = [
        {event["name"] for event in json.loads(path.read_bytes())["traceEvents"]}
        for path in (tmp_path / "publisher.json", tmp_path / "receiver.json")
    ]
    assert spans[0] >= {"publish", "pack", "append"}
    assert spans[1] >= {"wire", "stage", "barrier", "commit", "pause"}


def scraped(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_publisher_that_is_killed_goes_on_where_it_was(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    watched, out = tmp_path / "watched", tmp_path / "out"
    first = move_in(checkpoints[1], tmp_path, "step-9")
    with Program("publish", checkpoints[0], "--watch", watched) as publisher:
        address = publisher.wait_for("serving", version="v0/1.1")["address"]
        publisher.wait_for("published", n=2, checkpoint="step-9")
        with Program("receive", "--upstream", address, "--to", out) as receiver:
            receiver.wait_for("committed", n=2)
            publisher.stop(signal.SIGKILL)
            receiver.wait_for("trouble")
            options = ["--watch", watched, "--listen", address]
            with Program("publish", checkpoints[0], *options) as heir:
                # Another incarnation with the same bits: nothing crosses, and nothing is repeated.
                heir.wait_for("serving", version="v0/2.3")
                committed = receiver.wait_for("committed", n=3)
                assert (committed["tiles"], are_alike(out, first)) == (0, True)
                last = move_in(checkpoints[2], tmp_path, "step-10")
                heir.wait_for("published", n=4, checkpoint="step-10")
                receiver.wait_for("committed", n=4)
                assert are_alike(out, last)
                assert [one["event"] for one in heir.events].count("published") == 1


def test_receiver_repairs_what_a_killed_one_left_and_has_its_checkpoint_alone(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    out, file = tmp_path / "out", tmp_path / "out/model.safetensors"
    (tmp_path / "link").symlink_to(out)
    with Program("publish", checkpoints[0], "--watch", tmp_path / "watched") as publisher:
        upstream = ["--upstream", publisher.wait_for("serving")["address"]]
        with Program("receive", *upstream, "--to", out) as receiver:
            receiver.wait_for("committed", n=1)
            with Program("receive", *upstream, "--to", tmp_path / "link", "--once") as other:
                status, error = other.end()
            assert (status, error.count("\n")) == (2, 1)
            assert error.startswith(f"rose: another process receives into {tmp_path / 'link'}: ")
            receiver.stop(signal.SIGKILL)
        # As a commit that was killed leaves it: one tile is of no version.
        mapped(out)["layer.weight"][-1] ^= 1
        with Program("receive", *upstream, "--to", out) as receiver:
            committed = receiver.wait_for("committed", n=1)
            assert (committed["is_snapshot"], committed["tiles"]) == (True, 1)
            assert are_alike(out, checkpoints[0])
            receiver.send(signal.SIGSTOP)
            os.truncate(file, file.stat().st_size // 2)
            move_in(checkpoints[1], tmp_path)
            publisher.wait_for("published", n=2)
            receiver.send(signal.SIGCONT)
            status, error = receiver.end()
        assert (status, error.count("\n")) == (2, 1)
        assert error.startswith(f"rose: {file} was shortened by another process: ")


@needs_openssl
def test_programs_speak_over_tls(checkpoints: list[Path], tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    tls = make_certificate(authority, "peer")
    options = ["--tls", tls.certificate, tls.key, tls.authority]
    with Program(
        "publish", checkpoints[0], "--listen", "0.0.0.0:0", "--once", *options
    ) as publisher:
        port = publisher.wait_for("serving")["address"].rpartition(":")[2]
        where = ["--upstream", f"localhost:{port}", "--to", tmp_path / "out", "--once"]
        with Program("receive", *where, *options) as receiver:
            receiver.wait_for("committed", n=1)
            assert receiver.end() == (0, "")
        assert publisher.end() == (0, "")
    assert are_alike(tmp_path / "out", checkpoints[0])


def test_checkpoint_that_is_not_sound_stops_nobody(checkpoints: list[Path], tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    (watched / "a-half.safetensors").write_bytes(
        (checkpoints[1] / "model.safetensors").read_bytes()[:-5]
    )
    other = tmp_path / "watched" / "b-other"
    other.mkdir()
    options = ["--watch", watched, "--timeline", watched]
    with Program("publish", checkpoints[0], *options) as publisher:
        assert "a-half" in publisher.wait_for("trouble")["reason"]
        assert "b-other" in publisher.wait_for("trouble")["reason"]
        move_in(checkpoints[1], tmp_path, "c-good")
        publisher.wait_for("published", n=2, checkpoint="c-good")
        # What was half written is whole in the end.
        (watched / "a-half.safetensors").write_bytes(
            (checkpoints[2] / "model.safetensors").read_bytes()
        )
        publisher.wait_for("published", n=3, checkpoint="a-half.safetensors")
        assert [one["event"] for one in publisher.events].count("trouble") == 2
        status, error = publisher.stop()
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith(f"rose: cannot write the timeline to {watched}: Is a directory")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(one) for one in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_bad_input_is_one_sentence(
    checkpoints: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROSE_TOKEN", raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    here = checkpoints[0]
    assert "there is no token" in refused(capsys, "publish", here)
    assert "cannot read" in refused(capsys, "publish", here, "--token-file", tmp_path / "no")
    monkeypatch.setenv("ROSE_TOKEN", "12")
    assert "hexadecimal" in refused(capsys, "publish", here)
    monkeypatch.setenv("ROSE_TOKEN", KEY)
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for name in ("n" * 300, "file/it", "pipe"):
        where = ["--upstream", "127.0.0.1:1", "--to", tmp_path / name]
        assert "cannot write to " in refused(capsys, "receive", *where)
    assert "loopback" in refused(capsys, "publish", here, "--listen", "0.0.0.0:0")
    assert "loopback" in refused(capsys, "publish", here, "--metrics", "0.0.0.0:0")
    assert "does not exist" in refused(capsys, "publish", tmp_path / "nowhere")
    receive = ["receive", "--to", tmp_path / "out", "--upstream"]
    assert "loopback" in refused(capsys, *receive, "10.0.0.1:1")
    address = "127.0.0.1:1"
    assert "--rank needs" in refused(capsys, *receive, address, "--rank", "1")
    assert "cannot read" in refused(capsys, *receive, address, "--plan", tmp_path / "no")
    files = ["--tls", *3 * [tmp_path / "no.pem"]]
    assert "no.pem" in refused(capsys, *receive, address, *files)
    monkeypatch.setenv("ROSE_MANIFEST_KEY", "1234")
    assert "the manifest key must have at least 32" in refused(capsys, *receive, address)


def test_receiver_refuses_other_tensors_and_unsigned_versions(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    from rose.checkpoints.live import create_checkpoint

    create_checkpoint(tmp_path / "other", {"x": ("F32", (5,))})
    with Program("publish", checkpoints[0]) as publisher:
        address = publisher.wait_for("serving")["address"]
        with Program("receive", "--upstream", address, "--to", tmp_path / "other") as receiver:
            status, error = receiver.end()
        assert status == 2
        assert "other tensors" in error
        options = ["--upstream", address, "--to", tmp_path / "out"]
        with Program("receive", *options, environment={"ROSE_MANIFEST_KEY": KEY}) as receiver:
            assert "not signed" in receiver.wait_for("trouble")["reason"]
            assert receiver.stop()[0] == 0
        assert not are_alike(tmp_path / "out", checkpoints[0])


def test_relay_serves_a_cluster_and_each_byte_crosses_once(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    kept, outs = tmp_path / "kept", [tmp_path / "one", tmp_path / "two"]
    kept.mkdir()
    (kept / "hello").write_bytes(b"\xff" * 40)
    key = {"ROSE_MANIFEST_KEY": KEY}  # which the relay does not have
    watching = ["--watch", tmp_path / "watched"]
    with Program("publish", checkpoints[0], *watching, environment=key) as publisher:
        above = publisher.wait_for("serving")["address"]
        following = ["--upstream", above, "--directory", kept, "--metrics", "127.0.0.1:0"]
        with Program("relay", *following) as relay:
            here = relay.wait_for("serving")["address"]
            assert f"{kept / 'hello'} is damaged" in relay.wait_for("trouble")["reason"]
            metrics = relay.wait_for("metrics")["address"]
            relay.wait_for("following", n=1)
            with (
                Program("receive", "--upstream", here, "--to", outs[0], environment=key) as one,
                Program("receive", "--upstream", here, "--to", outs[1], environment=key) as two,
            ):
                for receiver in (one, two):
                    receiver.wait_for("committed", n=1)
                before = scraped(metrics)['rose_transfer_crossing_bytes_total{role="relay"}']
                inside = move_in(checkpoints[1], tmp_path)
                nbytes = publisher.wait_for("published", n=2)["bytes"]
                for receiver, out in zip((one, two), outs, strict=True):
                    receiver.wait_for("committed", n=2)
                    assert are_alike(out, inside)
                figures = scraped(metrics)
                crossing = figures['rose_transfer_crossing_bytes_total{role="relay"}']
                assert crossing == before + nbytes
                assert figures['rose_transfer_sent_bytes_total{role="relay"}'] > crossing
                relay.wait_for("landed", updates=1)
                # The publisher is gone, and the relay is started again: it has what came.
                publisher.stop(signal.SIGKILL)
                relay.stop(signal.SIGKILL)
                with Program("relay", *following[:4], "--listen", here) as heir:
                    assert heir.wait_for("serving")["n"] == 2
                    options = ["--upstream", here, "--to", checkpoints[0]]
                    with Program("receive", *options, environment=key) as late:
                        assert not late.wait_for("committed", n=2)["is_snapshot"]
                        assert are_alike(checkpoints[0], inside)
                    assert heir.stop() == (0, "")
