"""Several relays as one source: one that is gone or lies costs no version and changes no bit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rose.errors import CorruptData, InvalidArgument, OutOfMemory, RoseError, Unavailable
from rose.transfer.codec.delta import Delta
from rose.transfer.manifest import Chunk, Manifest, Subscription, UpdateKey
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay
from rose.transfer.relaying.relay_set import RelaySet
from rose.transfer.signing import Signing
from rose.transfer.source import Frames
from tests.transfer.chain_world import KEY, Behind, Chain
from tests.transfer.worker import TILES, HandClock, Planted, weights


class Malicious(Planted):
    """A relay in other hands: it knows everything but the key."""

    def __init__(self, relay: Any, trick: str) -> None:
        super().__init__(relay)
        self.trick = trick
        self.ever: list[Manifest] = []

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        known = super().wait_manifests(-1, 0)
        self.ever = list({one.key: one for one in (*self.ever, *known)}.values())
        fresh = [one for one in known if one.version.n > after_n]
        match self.trick:
            case "replays":
                return self.ever[:2]
            case "reorders":
                return fresh[::-1] + self.ever
            case "withholds":
                return []
            case "invents" | "signs":
                return [self.invented(one) for one in known]
            case "mixes":
                return [*fresh, *map(self.invented, known[-1:])]
            case "breaks":
                raise CorruptData("planted: no list of manifests")
        return fresh

    def invented(self, like: Manifest) -> Manifest:
        """Make a version up, with frames of its own: every sum in it is right but the MAC."""
        chunks = [replace(one, digest=(one.digest[0] ^ 1, 0)) for one in like.chunks]
        other = replace(
            like,
            version=replace(like.version, n=like.version.n + 5),
            base=like.version,
            base_digest=like.digest,
            digest=(7, 7),
            chunks=tuple(chunks),
            tile_digests=(),
        )
        return Signing(b"another key").signed(other) if self.trick == "signs" else other

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        snapshot = super().snapshot(n, tiles)
        if snapshot is None:
            return None
        match self.trick:
            case "snapshots":
                return replace(
                    snapshot, digest=(1, 2), version=replace(snapshot.version, n=1 << 40)
                )
            case "other snapshots":
                return super().snapshot(None, tiles[1:])
        return snapshot

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        for tile, frame in super().chunks(key, wanted):
            assert frame is not None
            match self.trick:
                case "alters":
                    yield tile, bytes(frame)[:-1] + bytes([frame[-1] ^ 1])
                case "recodes":  # another change, with checksums of its own making
                    delta = Delta.from_bytes(frame)
                    yield tile, replace(delta, digest=(delta.digest[0] ^ 1, 9)).to_bytes()
                case "swaps":
                    yield tile, self._source.chunk(key, (tile + 1) % len(TILES)) or frame
                case "repeats":
                    yield from ((tile, frame), (tile, frame), (1 << 20, frame))
                case "cuts":
                    yield tile, frame[:10]
                case "nothing":
                    return
                case "denies":
                    yield tile, None
                case _:
                    yield tile, frame


LIES = ("invents", "signs", "mixes", "breaks", "alters", "recodes", "swaps", "cuts")
TRICKS = (
    *LIES, "snapshots", "other snapshots", "replays", "reorders", "withholds", "repeats", "nothing",
    "denies",
)  # fmt: skip


class Cluster:
    """A publisher, relays that land a share each, and the set of them."""

    def __init__(self, count: int = 3, tricks: dict[int, str] | None = None) -> None:
        self.chain = Chain()
        self.landing = {tile: tile % count for tile in range(len(TILES))}
        self.relays = [
            Relay(
                self.chain.log,
                store=MemoryStore(),
                landing=Subscription(TILES, [t for t, at in self.landing.items() if at == mine]),
                patience_s=0,
            )
            for mine in range(count)
        ]
        self.near = [
            Malicious(relay, tricks[at]) if tricks and at in tricks else Planted(relay)
            for at, relay in enumerate(self.relays)
        ]
        self.clock = HandClock()
        self.liars: list[tuple[int, str]] = []
        self.round()

    def set(self) -> RelaySet:
        return RelaySet(
            self.near, self.landing, signing=KEY, clock=self.clock,
            on_liar=lambda relay, what: self.liars.append((relay, what)),
        )  # fmt: skip

    def round(self) -> None:
        for relay in self.relays:
            relay.round(0)

    def publish(self, versions: int = 1, **how: Any) -> None:
        for _ in range(versions):
            self.chain.publish(**how)
            self.round()

    def crossing_bytes(self) -> int:
        return sum(relay.statistics().crossing_bytes for relay in self.relays)


def brought(cluster: Cluster, one: Behind, n: int) -> None:
    """Let a receiver go on until it is at a version; whatever it holds meanwhile is true."""
    for _ in range(200):
        if one.staging.held.n == n:
            return
        with suppress(RoseError):
            one.round()
        cluster.clock.sleep(0.2)
        held = one.staging.held
        assert held.n == 0 or np.array_equal(one.bits, cluster.chain.by_n[held.n])
    raise AssertionError(f"200 rounds, and at {one.staging.held}")


def test_each_chunk_is_asked_of_the_relay_where_it_lands() -> None:
    cluster = Cluster()
    one = Behind(cluster.set(), cluster.chain.bits)
    cluster.publish(4, share=0.5)
    one.follow(5)
    assert np.array_equal(one.bits, cluster.chain.bits)
    for at, near in enumerate(cluster.near):
        assert near.crossed
        assert {tile % 3 for _, tile in near.crossed} == {at}
    every = {one.key: one.nbytes for one in cluster.chain.log.wait_manifests(-1, 0)}
    assert cluster.crossing_bytes() == sum(every[UpdateKey(n, n - 1)] for n in range(2, 6))
    assert cluster.liars == []


def test_relays_of_a_set_work_in_turns() -> None:
    cluster = Cluster()
    cluster.publish(share=1.0)
    source = cluster.set()
    [manifest] = source.wait_manifests(1, 0)
    order = [tile % 3 for tile, _ in source.chunks(manifest.key, manifest.chunks)]
    assert order[:6] == [0, 1, 2, 0, 1, 2]


def test_of_a_relay_that_is_away_another_one_reads_through() -> None:
    cluster = Cluster()
    cluster.publish(share=1.0)
    one = Behind(cluster.set(), cluster.chain.by_n[1])
    cluster.near[1].left = 2  # it goes after two chunks
    one.follow(2)
    assert np.array_equal(one.bits, cluster.chain.bits)
    assert cluster.liars == []
    cluster.publish()
    cluster.clock.sleep(100)
    brought(cluster, one, 3)


def test_failed_relay_is_retried_with_growing_delays() -> None:
    cluster = Cluster(2)
    source = cluster.set()
    first = cluster.near[0]
    first.is_away = True

    def asked() -> bool:
        first.calls.clear()
        source._first = 0
        source.wait_manifests(-1, 0)
        return bool(first.calls)

    pauses: list[float] = []
    for _ in range(8):
        assert asked()
        pause = 0.0
        while not asked():
            cluster.clock.sleep(0.125)
            pause += 0.125
        pauses.append(pause)  # the call that found it there failed too
        cluster.clock.sleep(40)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 30.0) or pauses[-1] == 30.0
    first.is_away = False
    assert asked()
    assert asked()


def test_set_is_unavailable_only_without_any_relay() -> None:
    cluster = Cluster(2)
    source = cluster.set()
    cluster.publish()
    [manifest] = source.wait_manifests(1, 0)
    for near in cluster.near:
        near.is_away = True
    for call in (
        lambda: source.wait_manifests(1, 0),
        lambda: source.snapshot(None, ()),
        lambda: source.report("one", 2, True, (0, 0)),
        lambda: list(source.chunks(manifest.key, manifest.chunks)),
    ):
        with pytest.raises(Unavailable):
            call()
        cluster.clock.sleep(60)
    cluster.near[1].is_away = False
    assert source.wait_manifests(1, 0) == [manifest]
    assert len(list(source.chunks(manifest.key, manifest.chunks))) == len(manifest.chunks)


def test_version_forgotten_by_every_relay_is_reported_as_forgotten() -> None:
    cluster = Cluster(2)
    cluster.publish(2)
    source = cluster.set()
    manifest = source.wait_manifests(1, 0)[0]
    for relay in cluster.relays:
        relay._forget([manifest.key])
    cluster.chain.log._forget([manifest.key])
    frames = dict(source.chunks(manifest.key, manifest.chunks))
    assert set(frames.values()) == {None}
    assert cluster.liars == []


def test_whole_tiles_come_from_the_relay_that_gave_the_snapshot_or_one_that_is_told_of_it() -> None:
    cluster = Cluster(2)
    cluster.publish()
    source = cluster.set()
    snapshot = source.snapshot(None, (0, 1, 2))
    assert snapshot is not None
    giver = next(at for at, near in enumerate(cluster.near) if near.calls)
    cluster.near[giver].left = 1
    frames = dict(source.chunks(snapshot.key, snapshot.chunks))
    assert sorted(frames) == [0, 1, 2]
    assert None not in frames.values()
    assert cluster.near[1 - giver].calls.count("snapshot") == 1


def test_answers_reach_the_publisher_over_any_relay() -> None:
    cluster = Cluster()
    source = cluster.set()
    cluster.publish()
    cluster.near[0].is_away = True
    source.report("one", 2, True, (0, 0))
    cluster.round()
    assert cluster.chain.log.receivers()["one"].n == 2


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("place", [0, 1])
def test_hostile_relay_changes_no_bit_and_loses_no_version(trick: str, place: int) -> None:
    cluster = Cluster(2, {place: trick})
    source = cluster.set()
    receivers = [Behind(source, cluster.chain.bits), Behind(cluster.set(), weights(9))]
    for _ in range(3):
        cluster.publish(2, share=0.5)
        for one in receivers:
            brought(cluster, one, cluster.chain.publisher.version.n)
            assert np.array_equal(one.bits, cluster.chain.bits)
            with suppress(RoseError):
                for _ in range(4):  # nothing is new, so it looks for that elsewhere
                    one.round()
            assert np.array_equal(one.bits, cluster.chain.bits)
    assert {relay for relay, _ in cluster.liars} <= {place}
    # Once for each set of relays that met it.
    assert len(cluster.liars) <= 2
    if trick in LIES:
        assert cluster.liars


def test_relay_with_wrong_chunks_is_reported_once_and_asked_last() -> None:
    cluster = Cluster(2, {0: "alters"})
    source = cluster.set()
    one = Behind(source, cluster.chain.bits)
    for _ in range(4):
        cluster.publish()
        cluster.clock.sleep(1000)
        brought(cluster, one, cluster.chain.publisher.version.n)
    assert len(cluster.liars) == 1
    assert "tile" in cluster.liars[0][1]
    cluster.clock.sleep(1000)
    cluster.near[0].calls.clear()
    source.wait_manifests(1, 0.001)
    assert cluster.near[0].calls == []


class Foreign(Planted):
    """A relay of another format: its messages are refused."""

    def __init__(self, relay: Any, error: RoseError) -> None:
        super().__init__(relay)
        self.error = error

    def _look(self, call: str) -> None:
        super()._look(call)
        raise self.error


@pytest.mark.parametrize("error", [InvalidArgument("planted"), OutOfMemory("planted")])
def test_of_a_relay_of_another_format_or_without_room_another_one_is_asked(
    error: RoseError,
) -> None:
    cluster = Cluster()
    cluster.near[1] = Foreign(cluster.relays[1], error)
    source = cluster.set()
    for first in range(3):
        cluster.publish(share=1.0, is_merged=False)
        cluster.clock.sleep(100)
        source._first = first
        [manifest] = source.wait_manifests(first + 1, 0)
        cluster.clock.sleep(100)
        assert len(dict(source.chunks(manifest.key, manifest.chunks))) == len(TILES)
        cluster.clock.sleep(100)
        assert source.snapshot(None, (0,)) is not None
        source.report("behind", first + 2, is_match=True, digest=(0, 0))
    assert {"wait", "chunks", "snapshot"} <= set(cluster.near[1].calls)
    assert cluster.liars == []
    for near in (cluster.near[0], cluster.near[2]):
        near.is_away = True
    cluster.clock.sleep(100)
    with pytest.raises(type(error), match="planted"):
        source.snapshot(None, ())


def test_empty_relay_set_and_unknown_landing_are_refused() -> None:
    near = [Chain().log]
    for relays, landing in (([], {}), (near, {0: 1})):
        with pytest.raises(InvalidArgument):
            RelaySet(relays, landing, signing=KEY, clock=HandClock(), on_liar=lambda *_: None)
