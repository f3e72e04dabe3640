"""`rose.publish` and `rose.receive`: tensors follow a training loop bit for bit, or say why not."""

import gc
import re
import threading
import time
import urllib.request

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rose
from rose.cli.main import main
from rose.clock import VERSION_EPOCH_MS, unix_ms
from rose.transfer.codec.delta import Delta
from rose.transfer.manifest import UpdateKey, Version
from rose.transfer.named import named_rows
from rose.transfer.published import WeightPublisher
from rose.transfer.signing import Signing
from rose.transfer.wire.security import Security
from rose.transfer.wire.server import WeightServer
from tests.waiting import wait_for

WAIT_S = 30.0


def arrays(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "bf16": draw.normal(size=(40, 33)).astype(ml_dtypes.bfloat16),
        "f32": draw.normal(size=(7, 5)).astype(np.float32),
        "f16": draw.normal(size=31).astype(np.float16),
        "fp8": draw.normal(size=129).astype(ml_dtypes.float8_e4m3fn),
        "bytes": draw.integers(0, 256, 17).astype(np.uint8),
        "counts": draw.integers(-9, 9, (2, 2)).astype(np.int32),
        "scalar": np.array(draw.normal(), np.float32),
        "empty": np.empty((0, 3), np.float32),
    }


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def changed(before: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return tensors of which two have a few other elements."""
    after = {name: one.copy() for name, one in before.items()}
    draw = np.random.default_rng(seed)
    for name in ("bf16", "f32"):
        row = after[name].reshape(-1)
        row[draw.choice(row.size, 3, replace=False)] = 1.0 + seed
    return after


def follow(receiver: rose.WeightReceiver, n: int) -> None:
    while receiver.version != n:
        receiver.wait(WAIT_S)
        receiver.commit()


@pytest.fixture
def publisher():
    with rose.publish(arrays(0)) as made:
        yield made


def received(publisher: rose.WeightPublisher, tensors, **options) -> rose.WeightReceiver:
    return rose.receive(tensors, publisher.address, token=publisher.token, **options)


def test_tensors_follow_every_version_bit_for_bit(publisher) -> None:
    here, there = arrays(1), arrays(0)
    with received(publisher, here) as receiver:
        assert receiver.version is None
        follow(receiver, 1)
        assert equal(here, there)
        for seed in range(3):
            there = changed(there, seed)
            n = publisher.update(there)
            assert n == publisher.version == seed + 2
            follow(receiver, n)
            assert equal(here, there)
        assert receiver.commit() is None


def test_only_the_largest_changes_are_sent_and_the_rest_comes_later() -> None:
    before = arrays(0)
    here = {name: one.copy() for name, one in before.items()}
    count = here["bf16"].size
    with (
        rose.publish(here, largest=0.1) as publisher,
        received(publisher, there := arrays(1)) as receiver,
    ):
        here["bf16"] += np.linspace(0.5, 1.5, count).reshape(40, 33).astype(ml_dtypes.bfloat16)
        here["f32"] += 1
        follow(receiver, publisher.update(here))
        is_sent = (there["bf16"] == here["bf16"]).reshape(-1)
        assert 0 < is_sent.sum() <= -(-count // 10)
        assert is_sent[: count // 2].sum() == 0  # the smallest wait
        assert equal({"f32": here["f32"]}, there)  # bf16 alone is selected
        for _ in range(12):
            follow(receiver, publisher.update(here))
        assert equal(here, there)


@pytest.mark.parametrize("largest", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(largest: float) -> None:
    with pytest.raises(rose.InvalidArgument, match="choose more than 0, and at most 1"):
        rose.publish(arrays(0), largest=largest)


def test_a_publisher_copies_the_tensors(publisher) -> None:
    there = arrays(0)
    publisher.update(there)
    there["f32"][:] = 5.0
    here = arrays(1)
    with received(publisher, here) as receiver:
        follow(receiver, 2)
    assert equal(here, arrays(0))


def test_tensors_of_torch_that_share_memory_count_once() -> None:
    def tied(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(64, 8), "head": None})
        model["head"] = torch.nn.Linear(8, 64, bias=False)
        model["head"].weight = model["embed"].weight
        return model.to(torch.bfloat16)

    trained, rolled_out = tied(0), tied(1)
    with (
        rose.publish(trained.state_dict()) as publisher,
        received(publisher, rolled_out.state_dict()) as receiver,
    ):
        with torch.no_grad():
            trained["embed"].weight[3] += 1
        follow(receiver, publisher.update(trained.state_dict()))
    assert torch.equal(trained["head"].weight, rolled_out["head"].weight)


def test_tensors_that_somebody_else_changed_are_repaired(publisher) -> None:
    here = arrays(1)
    with received(publisher, here) as receiver:
        follow(receiver, 1)
        there = changed(arrays(0), 1)
        here["f32"][0, 0] = 77.0
        publisher.update(there)
        receiver.wait(WAIT_S)
        with pytest.raises(rose.CorruptData, match="version 2 was not committed"):
            follow(receiver, 2)
        follow(receiver, 2)
        assert equal(here, there)


def test_after_an_interrupt_the_tensors_are_a_version_and_follow_on(
    publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = arrays(1), changed(arrays(0), 1)
    with received(publisher, here) as receiver:
        follow(receiver, 1)
        n = publisher.update(there)
        receiver.wait(WAIT_S)

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(receiver._weights, "apply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                receiver.commit()
        assert receiver.version == 1
        assert equal(here, arrays(0))
        before = receiver.digest
        follow(receiver, n)
        assert equal(here, there)
        assert len(receiver.digest) == len(before) == 32
        assert receiver.digest != before


def test_a_checkpoint_on_disk_follows_too(publisher, tmp_path, monkeypatch) -> None:
    there = changed(arrays(0), 4)
    publisher.update(there)
    monkeypatch.setenv("ROSE_TOKEN", publisher.token)
    command = ["receive", "--upstream", publisher.address, "--to", str(tmp_path), "--once"]
    assert main(command) == 0
    (file,) = tmp_path.glob("*.safetensors")
    stored = load_file(file)
    assert stored.keys() == there.keys()
    for name, one in stored.items():
        assert one.reshape(-1).view(torch.uint8).numpy().tobytes() == there[name].tobytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda some: some.pop("f16"), "f16 is missing"),
        (lambda some: some.update(more=np.zeros(3, np.float32)), "more is not among them"),
        (
            lambda some: some.update(f32=np.zeros((5, 7), np.float32)),
            r"f32 is F32 \(5, 7\), not F32 \(7, 5\)",
        ),
        (
            lambda some: some.update(f16=np.zeros(31, ml_dtypes.bfloat16)),
            r"f16 is BF16 \(31,\), not F16 \(31,\)",
        ),
        (lambda some: some.update(f32=np.zeros((7, 5), ">f4")), "f32 has the dtype >f4"),
        (dict.clear, "tensors must have at least one entry"),
    ],
)
def test_other_tensors_are_refused_by_name(publisher, change, sentence) -> None:
    wrong = arrays(0)
    change(wrong)
    with pytest.raises(rose.InvalidArgument, match=sentence):
        publisher.update(wrong)
    assert publisher.version == 1
    with pytest.raises(rose.InvalidArgument, match=sentence):
        received(publisher, wrong)
    assert publisher.update(arrays(1)) == 2


def test_tensors_that_cannot_be_changed_in_place_are_refused(publisher) -> None:
    here = arrays(1)
    here["f32"] = np.asfortranarray(here["f32"])
    with pytest.raises(rose.InvalidArgument, match="f32 must be contiguous"):
        received(publisher, here)
    here = arrays(1)
    here["f32"].setflags(write=False)
    with pytest.raises(rose.InvalidArgument, match="f32 is read-only"):
        received(publisher, here)


def test_no_news_in_time_is_an_error(publisher) -> None:
    with received(publisher, arrays(0)) as receiver:
        follow(receiver, 1)
        with pytest.raises(rose.DeadlineExceeded, match=r"no new version was ready within 0\.05 s"):
            receiver.wait(0.05)


def test_versions_of_another_key_are_not_taken() -> None:
    here = arrays(1)
    with rose.publish(arrays(0), manifest_key=b"k" * 16) as publisher:
        with (
            received(publisher, here, manifest_key=b"x" * 16) as receiver,
            pytest.raises(rose.DeadlineExceeded, match="signed"),
        ):
            receiver.wait(2.0)
        assert equal(here, arrays(1))
        with received(publisher, here, manifest_key=b"k" * 16) as receiver:
            follow(receiver, 1)
    assert equal(here, arrays(0))


def test_a_publisher_that_starts_again_goes_on_with_higher_numbers() -> None:
    here, there = arrays(1), changed(arrays(0), 2)
    with rose.publish(arrays(0)) as publisher:
        receiver = received(publisher, here)
        follow(receiver, publisher.update(there))
        address, token = publisher.address, publisher.token
    with receiver, rose.publish(there, listen=address, token=token, first_version=10) as publisher:
        there = changed(there, 3)
        assert publisher.update(there) == 11
        follow(receiver, 11)
        assert equal(here, there)


def test_an_address_without_that_publisher_is_refused() -> None:
    with rose.publish(arrays(0)) as publisher:
        address, token = publisher.address, publisher.token
        with pytest.raises(rose.Unavailable, match="requires another token"):
            rose.receive(arrays(0), address, token="0" * 64)
    with pytest.raises(rose.Unavailable, match="did not answer Hello"):
        rose.receive(arrays(0), address, token=token)


TOKEN = "ab" * 32


def restarted(earlier: rose.WeightPublisher, weights, **options) -> rose.WeightPublisher:
    """Publish at the address and with the token of a publisher that is closed."""
    return rose.publish(weights, listen=earlier.address, token=earlier.token, **options)


@pytest.mark.parametrize("first_version", [None, 1])
def test_a_run_that_starts_again_from_the_beginning_is_joined_anew(first_version, caplog) -> None:
    here, there = arrays(1), arrays(0)
    with rose.publish(there, token=TOKEN) as earlier:
        receiver = received(earlier, here)
        for seed in (1, 2):
            there = changed(there, seed)
            follow(receiver, earlier.update(there))
    there = arrays(5)
    with receiver, restarted(earlier, there, first_version=first_version) as later:
        there = changed(there, 7)
        later.update(there)
        while receiver.held.run != later.newest.run or receiver.version != later.version:
            receiver.wait(WAIT_S)
            receiver.commit()
        assert equal(here, there)
        runs = earlier.newest.run, later.newest.run
    said = [record.getMessage() for record in caplog.records]
    assert sum("joins it anew" in one and all(run in one for run in runs) for one in said) == 1
    assert sum("join it anew" in one and all(run in one for run in runs) for one in said) == 1


def test_numbers_of_a_publisher_that_may_be_found_again_exceed_the_earlier_ones() -> None:
    with rose.publish(arrays(0), token=TOKEN) as earlier:
        assert earlier.version == 1
        address = earlier.address
    with rose.publish(arrays(0), listen=address) as stranger:
        assert stranger.version == 1  # no earlier receiver has its token
    with restarted(earlier, arrays(0)) as later:
        assert later.version > 1_000_000


def test_numbers_grow_though_versions_come_faster_than_seconds() -> None:
    with rose.publish(arrays(0)) as first:
        address, token = first.address, first.token
    with rose.publish(arrays(0), listen=address, token=token) as publisher:
        newest = [publisher.update(arrays(0)) for _ in range(20)][-1]
    # Numbers count milliseconds, and on a fast machine these versions took less than one each.
    wait_for(lambda: unix_ms() - VERSION_EPOCH_MS > newest)
    with restarted(publisher, arrays(1)) as later:
        assert later.version > newest


def test_a_run_that_went_back_says_so() -> None:
    here = arrays(1)
    with rose.publish(arrays(0), token=TOKEN, run="mine") as old:
        address, earlier = old.address, old.newest
        receiver = received(old, here)
        follow(receiver, 1)
    with (
        receiver,
        WeightPublisher(
            named_rows(arrays(2)),
            opening=Version("mine", earlier.incarnation - 1, 50),
            listen=address,
            security=Security.of(TOKEN),
            signing=Signing(),
        ),
        pytest.raises(rose.DeadlineExceeded, match="give it another run name"),
    ):
        receiver.wait(2.0)


def test_a_signed_version_of_an_older_run_is_not_taken() -> None:
    here, key = arrays(1), b"k" * 16
    with rose.publish(arrays(0), token=TOKEN, manifest_key=key) as old:
        replayed, now = old.newest, old.address
    with rose.publish(arrays(2), listen=now, token=TOKEN, manifest_key=key) as new:
        receiver = received(new, here, manifest_key=key)
        follow(receiver, new.version)
    with (
        receiver,
        WeightPublisher(
            named_rows(arrays(0)),
            opening=replayed,
            listen=now,
            security=Security.of(TOKEN),
            signing=Signing(key),
        ),
        pytest.raises(rose.DeadlineExceeded, match="a run that began before"),
    ):
        receiver.wait(2.0)
    assert equal(here, arrays(2))


def test_tensors_that_no_update_touches_are_compared_too(publisher) -> None:
    here, there = arrays(1), arrays(0)
    with received(publisher, here, scrub_s=1e6) as receiver:
        follow(receiver, 1)
        here["f16"][3] = 5.0
        there["f32"] += 1
        publisher.update(there)
        receiver.wait(WAIT_S)
        with pytest.raises(rose.CorruptData, match="somebody else wrote to f16"):
            receiver.commit()
        assert receiver.version is None
        follow(receiver, 2)
        assert equal(here, there)


def test_a_commit_compares_all_small_weights_again_after_the_background(publisher) -> None:
    here, there = arrays(1), arrays(0)
    with received(publisher, here, scrub_s=1e6) as receiver:
        follow(receiver, 1)
        scrub = receiver._scrubbing()
        for _ in range(len(scrub.digests) - 1):
            scrub.step(0)
        here["bytes"][0] ^= 1  # its tile has been read
        there["f32"] += 1
        publisher.update(there)
        receiver.wait(WAIT_S)
        with pytest.raises(rose.CorruptData, match="somebody else wrote to bytes"):
            receiver.commit()


def test_the_background_finds_damage_while_nothing_is_published(publisher) -> None:
    here = arrays(1)
    with received(publisher, here, scrub_s=0.05) as receiver:
        follow(receiver, 1)
        here["f16"][3] = 5.0
        receiver.wait(WAIT_S)
        assert receiver.version is None
        receiver.commit()
        assert receiver.version == 1
        assert equal(here, arrays(0))


@pytest.mark.parametrize("moves", ["parameter", "passed tensor", "entry", "shared memory"])
def test_a_tensor_that_the_engine_moved_is_not_committed_in_silence(moves: str) -> None:
    trained, engine = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    state = engine.state_dict()
    with rose.publish(trained.state_dict()) as publisher:
        receiver = received(publisher, state)
        with receiver:
            follow(receiver, 1)
            moved = engine.weight if moves == "parameter" else state["weight"]
            if moves == "entry":
                state["weight"] = moved.clone()
            elif moves == "shared memory":
                moved.share_memory_()
                with pytest.raises(rose.InvalidArgument, match="weight moved to other memory"):
                    receiver._weights.digest(1)  # as the background reads it
            else:
                moved.data = moved.data.clone()
            with torch.no_grad():
                trained.weight += 1
            publisher.update(trained.state_dict())
            receiver.wait(WAIT_S)
            with pytest.raises(rose.InvalidArgument, match="weight moved to other memory"):
                receiver.commit()
            assert receiver.version == 1


def test_tensors_that_are_no_longer_tied_are_refused() -> None:
    w = torch.zeros(4)
    with rose.publish({"a": w, "b": w}) as publisher:
        with pytest.raises(rose.InvalidArgument, match="a shared its memory with another name"):
            publisher.update({"a": w, "b": w + 1})
        assert publisher.update({"a": w, "b": w}) == 2


@pytest.mark.parametrize("name", ["", "..", "a/b", "x\ny", "n\0ul", "权重.é", "k" * 10_000])
def test_a_name_that_is_published_is_received(name: str) -> None:
    here, there = {name: np.zeros(3, np.float32)}, {name: np.ones(3, np.float32)}
    with rose.publish(there) as publisher, received(publisher, here) as receiver:
        follow(receiver, 1)
    assert equal(here, there)


def test_more_names_than_one_message_holds_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("rose.transfer.wire.peers.REPLY_BYTES_MAX", 100)
    with pytest.raises(rose.InvalidArgument, match="the names of 8 tensors take"):
        rose.publish(arrays(0))


@pytest.mark.parametrize(("round_trip_ms", "is_strat"), [(0.3, False), (40.0, True)])
def test_changes_are_encoded_for_the_longest_link(
    round_trip_ms: float, is_strat: bool, monkeypatch
) -> None:
    here, there = arrays(1), arrays(0)
    monkeypatch.setattr(WeightServer, "longest_rtt_ms", round_trip_ms)
    with rose.publish(there) as publisher, received(publisher, here) as receiver:
        follow(receiver, 1)
        there["bf16"] += np.float32(0.5)
        n = publisher.update(there)
        frames = publisher._log.frames(UpdateKey(n, n - 1))
        assert frames is not None
        rules = [Delta.from_bytes(frame).rule is not None for frame in frames.values()]
        assert any(rules) is is_strat
        follow(receiver, n)
        assert equal(here, there)


def test_unsent_changes_of_top_k_are_shown(capsys) -> None:
    before = {"w": np.zeros(100, ml_dtypes.bfloat16)}
    with rose.publish(before, largest=0.1, metrics="127.0.0.1:0") as publisher:
        assert publisher.drift.unsent == 0
        publisher.update({"w": np.arange(100).astype(ml_dtypes.bfloat16)})
        with received(publisher, {"w": before["w"].copy()}, name="engine") as receiver:
            follow(receiver, 2)
            while "engine" not in publisher.receivers:
                time.sleep(0.01)
        assert publisher.receivers["engine"].n == 2
        assert (publisher.drift.elements, publisher.drift.unsent) == (100, 89)
        page = urllib.request.urlopen(f"http://{publisher.metrics_address}/metrics", timeout=30)
        figures = page.read().decode()
        assert main(["top", str(publisher.metrics_address)]) == 0
    table = capsys.readouterr().out
    assert re.search(r"unsent_share +│ 0\.89 ", table)
    assert re.search(r"unsent_age +│ 1 ", table)
    assert re.search(r"engine +│ 2 ", table)
    assert 'rose_transfer_unsent_share{role="publisher"} 0.89' in figures
    assert 'rose_transfer_lag_versions{role="publisher"} 0.0' in figures


def test_top_k_needs_a_tensor_that_it_can_limit() -> None:
    with pytest.raises(
        rose.InvalidArgument, match="limits tensors of bfloat16, and there are none"
    ):
        rose.publish({"w": np.zeros(3, np.float32)}, largest=0.5)


def test_closed_publishers_and_receivers_refuse_at_once(publisher) -> None:
    receiver = received(publisher, arrays(0))
    for one in (receiver, publisher):
        one.close()
        one.close()
    for call in (lambda: receiver.wait(1e6), receiver.commit, lambda: publisher.update(arrays(0))):
        with pytest.raises(rose.Unavailable, match="was closed"):
            call()


def test_an_update_after_an_interrupted_one_heals(publisher, monkeypatch) -> None:
    here, there = arrays(1), arrays(0)
    with received(publisher, here) as receiver:
        follow(receiver, 1)

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(publisher._publisher, "_append", interrupted)
            patch.setattr(publisher._publisher, "_taken_back", interrupted)
            with pytest.raises(KeyboardInterrupt):
                publisher.update(changed(there, 1))
        there = changed(there, 2)
        follow(receiver, publisher.update(there))
        assert equal(here, there)
        there = changed(there, 3)
        follow(receiver, publisher.update(there))
        assert equal(here, there)


def test_what_is_dropped_without_a_close_ends() -> None:
    def own_threads() -> int:
        return sum(one.name.startswith("rose-") for one in threading.enumerate())

    before = own_threads()
    publisher = rose.publish(arrays(0), metrics="127.0.0.1:0")
    receiver = received(publisher, arrays(1))
    follow(receiver, 1)
    both = own_threads()
    del receiver
    gc.collect()
    wait_for(lambda: before < own_threads() < both)
    with received(publisher, arrays(0)) as receiver:
        follow(receiver, 1)
        held = own_threads()
        del publisher
        gc.collect()
        wait_for(lambda: own_threads() < held)
    wait_for(lambda: own_threads() == before)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"run": 5}, "run must be of type str, got a int"),
        ({"first_version": 1.5}, "first_version must be of type int, got a float"),
        ({"shards": 5}, "shards must be of type Shards"),
        ({"manifest_key": "abc"}, "the key of manifests must be bytes"),
        ({"tls": "abc"}, "three paths of PEM files"),
        ({"names": 5}, "must be a mapping or a function"),
    ],
)
def test_arguments_of_another_kind_are_refused(publisher, wrong, sentence: str) -> None:
    with pytest.raises(rose.InvalidArgument, match=sentence):
        rose.publish(arrays(0), **wrong)
    if not wrong.keys() & {"run", "first_version"}:
        with pytest.raises(rose.InvalidArgument, match=sentence):
            received(publisher, arrays(0), **wrong)


@pytest.mark.parametrize("name", ["n" * 257, "a\nb"])
def test_a_receiver_that_could_not_report_is_refused(publisher, name: str) -> None:
    with pytest.raises(rose.InvalidArgument, match="printable text of at most 256 characters"):
        received(publisher, arrays(0), name=name)


def test_a_time_that_is_no_number_is_refused(publisher) -> None:
    with received(publisher, arrays(0)) as receiver:
        for timeout_s in (float("nan"), float("inf")):
            with pytest.raises(rose.InvalidArgument, match="choose a finite number"):
                receiver.wait(timeout_s)


@pytest.mark.parametrize("scrub_s", [-1.0, float("nan"), float("inf")])
def test_a_period_that_is_no_time_is_refused(publisher, scrub_s: float) -> None:
    with pytest.raises(rose.InvalidArgument, match="choose a finite number of seconds"):
        received(publisher, arrays(0), scrub_s=scrub_s)
