"""What the programs that move weights are made of: their notes, events, options and orders."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.cli.weights.options import Events, WeightOptions, _secret, observed
from rose.cli.weights.publish import CheckpointPublisher
from rose.cli.weights.receive import _open, stored_tensors
from rose.cli.weights.relay import Introduction, read_hello, write_hello
from rose.cli.weights.state import PublishState, entries, read_state, write_state
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.transfer.observing.timed import TimedLog
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.tiling import plain_layout
from rose.transfer.signing import Signing
from rose.transfer.wire.messages import HelloReply, TensorEntry, encode
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.security import Security
from tests.cli.weight_programs import make_checkpoint

if TYPE_CHECKING:
    from rose.cli.weights.sources import Addresses

STATE = PublishState("run", 3, 17, "steps/newest", ("steps/a", "steps/b"))


def test_a_timeline_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    options = SimpleNamespace(timeline=tmp_path / "no" / "trace.json", metrics=None)
    with (
        pytest.raises(InvalidArgument, match="cannot write the timeline"),
        observed(options, "receiver", dict, Timeline("receiver")),
    ):
        pass


def test_state_is_what_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_state(path) is None
    write_state(path, STATE)
    assert read_state(path) == STATE
    with pytest.raises(Unavailable, match="cannot write"):
        write_state(tmp_path / "no" / "state", STATE)
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_state(tmp_path)


@given(
    content=st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(
                st.sampled_from(["format", "run", "incarnation", "n", "newest", "published"]), one
            )
        ),
    ).map(lambda one: json.dumps(one).encode())
)
def test_state_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    path.write_bytes(content)
    with pytest.raises(CorruptData):
        read_state(path)


@pytest.mark.parametrize("wrong", [{"format": 2}, {"n": -1}, {"n": 1 << 62}, {"more": 1}])
def test_state_that_another_rose_could_misread_is_refused(
    tmp_path: Path, wrong: dict[str, int]
) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(CorruptData):
        read_state(path)


def test_folder_offers_checkpoints_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ["step-10", "step-9", "step-100", ".step-1", "b", "a-2-x", "a-2"]:
        (tmp_path / name).mkdir()
    for name in ["step-11.safetensors", "notes.txt", ".x.safetensors", "7.safetensors"]:
        (tmp_path / name).touch()
    names = [one.name for one in entries(tmp_path)]
    steps = [one for one in names if one.startswith("step")]
    assert steps == ["step-9", "step-10", "step-11.safetensors", "step-100"]
    assert set(names) == {*steps, "b", "a-2", "a-2-x", "7.safetensors"}
    with pytest.raises(Unavailable, match="cannot read"):
        list(entries(tmp_path / "nowhere"))


def test_events_are_lines_of_json_or_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    for is_json in (True, False):
        events = Events(is_json=is_json)
        events.report("committed", n=3, reason=None)
        for sentence in ("away", "away", None, "away", "late"):
            events.trouble(sentence)
            events.trouble("other\nlines", about="else")
    lines = capsys.readouterr().out.splitlines()
    said = [json.loads(line) for line in lines[:5]]
    assert [(one["event"], one.get("n"), one.get("reason")) for one in said] == [
        ("committed", 3, None),
        ("trouble", None, "away"),
        ("trouble", None, "other lines"),
        ("trouble", None, "away"),
        ("trouble", None, "late"),
    ]
    assert said[0]["time_ns"] <= said[-1]["time_ns"]
    assert lines[5:7] == ["committed: n=3", "trouble: reason=away"]


def test_secret_is_text_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("ab12\n")
    assert _secret(path) == "ab12"
    for content in (b"", b"\n", b"\xff" * 8, b"0" * 5000):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match="hexadecimal"):
            _secret(path)


HELLO = HelloReply("v0", "publisher", "ab" * 32, 7, (), (TensorEntry("w", "BF16", (3, 5)),))


def test_every_damage_to_a_hello_that_a_relay_kept_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "hello"
    assert read_hello(path) is None
    write_hello(path, HELLO)
    assert read_hello(path) == HELLO
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))] + [whole + b"\0"]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CorruptData, match="hello is damaged"):
            read_hello(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidArgument, match=r"cannot read .*hello"):
        read_hello(path)


def test_relay_names_a_damaged_hello_and_writes_it_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hello"
    path.write_bytes(encode(HELLO))  # It decodes, but nothing vouches for it.
    peers = Peers("relay", "relay")
    introduction = Introduction(tmp_path, (), "here:1", peers, Events(is_json=False))
    assert (introduction.known, peers.hello(1).layout) == (None, "")
    assert (
        f"{path} is damaged: its SHA-256 does not match; it is replaced" in capsys.readouterr().out
    )
    there = SimpleNamespace(hellos=lambda: [None, HELLO])
    introduction.update(cast("Addresses", there))
    assert (introduction.known, peers.hello(1).layout) == (HELLO, HELLO.layout)
    assert read_hello(path) == HELLO
    again = Introduction(tmp_path, (), "here:1", peers, Events(is_json=False))
    assert (again.known, capsys.readouterr().out) == (HELLO, "")


@pytest.mark.parametrize("shape", [(3, 6), (15,), (1 << 62, 1 << 62)])
def test_receiver_makes_no_checkpoint_that_no_version_fits(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    folder, events = tmp_path / "out", Events(is_json=False)
    folder.mkdir()
    right = replace(HELLO, layout=plain_layout(stored_tensors(HELLO.tensors)))
    wrong = replace(right, tensors=(TensorEntry("w", "BF16", shape),))
    with pytest.raises(InvalidArgument, match="other tensors"):
        _open(folder, None, wrong, events)
    assert list(folder.iterdir()) == []
    with pytest.raises(CorruptData, match="dtype"):
        _open(folder, None, replace(right, tensors=(TensorEntry("w", "F99", (3, 5)),)), events)
    checkpoint, tiling = _open(folder, None, right, events)
    assert (list(checkpoint.tensors), tiling.tiles.layout) == (["w"], right.layout)
    with pytest.raises(InvalidArgument, match="other tensors"):
        _open(folder, None, replace(right, layout=HELLO.layout), events)


def test_number_of_a_version_that_may_have_been_published_is_never_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_checkpoint(tmp_path / "v0", 0)
    fresh = make_checkpoint(tmp_path / "v1", 1, base=base)
    state = tmp_path / "state"
    made, log = publisher_of(base, state)
    assert str(made.weights.newest) == "run/1.1"
    # Killed after the log had the version and before anything more was noted.
    monkeypatch.setattr(log, "append", killed_after(log.append))
    with pytest.raises(KeyboardInterrupt):
        made.publish(fresh)
    assert log.wait_manifests(1, 0)[0].version.n == 2
    made.weights.close()
    again, _ = publisher_of(base, state)
    assert str(again.weights.newest) == "run/2.3"
    again.weights.close()


def killed_after(append: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        append(*arguments)
        raise KeyboardInterrupt

    return call


def publisher_of(checkpoint: Path, state: Path) -> tuple[CheckpointPublisher, TimedLog]:
    log = TimedLog()
    made = CheckpointPublisher(
        checkpoint,
        state,
        "run",
        listen="127.0.0.1:0",
        options=WeightOptions(Security(bytes(32)), Signing(), None, None, Events(is_json=True)),
        timeline=Timeline("x"),
        encoding="gap",
        threads=1,
        log=log,
        plan=None,
        parts=(),
        undo=ExitStack(),
    )
    return made, log
