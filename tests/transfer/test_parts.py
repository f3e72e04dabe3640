"""Ranks that pack their own part: a rank keeps only what the publisher's log accepted."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest

from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.manifest import Manifest, Version
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.tiles import Row, ShardViews, Tiles
from rose.transfer.wire import messages, token_server
from rose.transfer.wire.part_server import PartServer
from rose.transfer.wire.remote_part import RemotePart, WeightsElsewhere
from tests.transfer.worker import (
    LONG_S,
    TILE,
    TILES,
    Bits,
    Worker,
    changed,
    eventually,
    weights,
    whole_row,
)

MINE = range(0, len(TILES), 2)
THEIRS = range(1, len(TILES), 2)
BITS: list[Bits] = [weights(3)]
for step in range(8):
    BITS.append(changed(BITS[-1], 90 + step, share=0.2))


class Rank:
    """Weights by step; `lost` are those that it does not have."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.asked = threading.Event()
        self.let_through = threading.Event()
        self.let_through.set()

    def weights(self, label: str) -> Row:
        return self.fresh(label)

    def fresh(self, label: str) -> Row:
        self.asked.set()
        assert self.let_through.wait(LONG_S)
        return Row(self._bits(label), TILES)

    def _bits(self, label: str) -> Bits:
        if label in self.lost or not label.isdigit():
            raise Unavailable(f"planted: no weights of step {label}")
        return BITS[int(label)]


class Trainer:
    """A publisher whose odd tiles are those of a rank that is reached over gRPC."""

    def __init__(self, parts: ExitStack) -> None:
        self._parts = parts
        self.rank = Rank()
        self.server = parts.enter_context(PartServer(THEIRS, TILES, self.rank.weights))
        self.log = VersionLog()
        self.remote = self._opened("0")
        self.mine = Contributor(Row(BITS[0].copy(), TILES), TILES, MINE)
        self.publisher = Publisher([self.mine, self.remote], TILES, Version("run", 1, 1), self.log)

    def _opened(self, label: str) -> RemotePart:
        made = RemotePart(self.server.address, self.server.token, TILES, label, timeout_s=LONG_S)
        return self._parts.enter_context(made)

    def restart_rank(self) -> None:
        address, token = self.server.address, self.server.token
        self.server.close()
        self.server = self._parts.enter_context(
            PartServer(THEIRS, TILES, self.rank.weights, address, token=token)
        )

    def publish(self, step: int) -> Manifest:
        return self.publisher.publish(Row(BITS[step], TILES), WeightsElsewhere(str(step)))

    def whole_row(self, n: int | None = None) -> Bits:
        return whole_row(self.log, n)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    with ExitStack() as parts:
        yield Trainer(parts)


def test_a_receiver_follows_tiles_of_ranks_in_other_processes(trainer: Trainer) -> None:
    with Worker(trainer.log, BITS[0]) as worker:
        for step in (1, 2, 3):
            manifest = trainer.publish(step)
            worker.follow(manifest.version)
            assert np.array_equal(worker.bits, BITS[step])
        assert worker.receiver.stats.snapshots == 0
        assert {chunk.tile % 2 for chunk in manifest.chunks} == {0, 1}


def test_several_ranks_publish_the_version_of_one_process(trainer: Trainer) -> None:
    alone = Contributor(Row(BITS[0].copy(), TILES), TILES)
    other = VersionLog()
    one = Publisher([alone], TILES, Version("run", 1, 1), other)
    for step in (1, 2):
        assert trainer.publish(step) == one.publish(Row(BITS[step], TILES))


def test_whole_tiles_of_another_rank_come_also_of_versions_before(trainer: Trainer) -> None:
    for step in (1, 2, 3):
        trainer.publish(step)
    for n, step in ((None, 3), (4, 3), (3, 2), (2, 1)):
        assert np.array_equal(trainer.whole_row(n), BITS[step])


def test_version_refused_by_the_log_is_undone_on_all_ranks(trainer: Trainer) -> None:
    trainer.publish(1)
    trainer.log._bytes_max = 1
    with pytest.raises(OutOfMemory):
        trainer.publish(2)
    trainer.log._bytes_max = 1 << 30
    assert np.array_equal(trainer.whole_row(), BITS[1])
    trainer.publish(3)
    assert np.array_equal(trainer.whole_row(), BITS[3])


def test_rank_without_the_step_loses_only_that_version(trainer: Trainer) -> None:
    trainer.rank.lost = {"1"}
    with pytest.raises(Unavailable, match="no weights of step 1"):
        trainer.publish(1)
    assert trainer.publisher.version.n == 1
    assert np.array_equal(trainer.whole_row(), BITS[0])
    trainer.publish(2)
    assert np.array_equal(trainer.whole_row(), BITS[2])


def test_late_result_of_an_abandoned_pack_changes_nothing(trainer: Trainer) -> None:
    trainer.rank.let_through.clear()
    part, late = PackedPart(), WeightsElsewhere("5")
    trainer.remote.begin(late)
    assert trainer.rank.asked.wait(LONG_S)
    trainer.remote.give_up(part)
    assert trainer.remote.take_back(part)
    trainer.remote.begin(WeightsElsewhere("1"))
    trainer.rank.let_through.set()  # both at once, in any order
    trainer.remote.pack(late, part)
    trainer.remote.keep(part)
    for _ in range(3):
        row = Row(BITS[1], TILES)
        for tile in THEIRS:
            assert np.array_equal(trainer.remote.whole(tile), row.bits(tile))


def test_restarted_rank_ends_the_incarnation(
    trainer: Trainer,
) -> None:
    trainer.publish(1)
    trainer.restart_rank()
    with pytest.raises(Unavailable, match="open its part again"):
        trainer.publish(2)
    with pytest.raises(Unavailable, match="begin another incarnation"):
        trainer.publish(2)
    before = trainer.publisher
    trainer.remote.open("2")
    mine = Contributor(Row(BITS[2].copy(), TILES), TILES, MINE)
    trainer.publisher = Publisher([mine, trainer.remote], TILES, Version("run", 2, 3), trainer.log)
    assert np.array_equal(trainer.whole_row(), BITS[2])
    with Worker(trainer.log, BITS[0]) as worker:
        worker.follow(trainer.publish(3).version)
        assert np.array_equal(worker.bits, BITS[3])
    with pytest.raises(Unavailable):  # it is of the incarnation before, and must not go on
        before.publish(Row(BITS[4], TILES), WeightsElsewhere("4"))
    assert trainer.publisher.version == Version("run", 2, 4)


def test_log_is_reopened_only_by_a_later_incarnation(trainer: Trainer) -> None:
    for opening in (Version("run", 1, 9), Version("other", 2, 9)):
        mine = Contributor(Row(BITS[0].copy(), TILES), TILES)
        with pytest.raises(InvalidArgument, match="begin a later incarnation"):
            Publisher([mine], TILES, opening, trainer.log)


def test_replaced_publisher_is_ignored(
    trainer: Trainer,
) -> None:
    heir = trainer._opened("3")
    with pytest.raises(Unavailable, match="not in the publisher's session"):
        trainer.publish(1)
    row = Row(BITS[3], TILES)
    for tile in THEIRS:
        assert np.array_equal(heir.whole(tile), row.bits(tile))


class Ranks:
    """A publisher of ranks that are all reached over gRPC; the last has `last_s` for a call."""

    def __init__(self, stack: ExitStack, ranks: Sequence[Rank], *, last_s: float = LONG_S) -> None:
        self.parts: list[RemotePart] = []
        for at, rank in enumerate(ranks):
            owned = range(at, len(TILES), len(ranks))
            server = stack.enter_context(PartServer(owned, TILES, rank.weights))
            timeout_s = last_s if at == len(ranks) - 1 else LONG_S
            one = RemotePart(server.address, server.token, TILES, "0", timeout_s=timeout_s)
            self.parts.append(stack.enter_context(one))
        self.log = VersionLog()
        self.publisher = Publisher(self.parts, TILES, Version("run", 1, 1), self.log)

    def publish(self, step: int) -> Manifest:
        return self.publisher.publish(*[WeightsElsewhere(str(step)) for _ in self.parts])


def test_ranks_pack_at_once() -> None:
    """Each rank waits in its pack until all of them are there."""
    barrier = threading.Barrier(3)

    class Waiting(Rank):
        def fresh(self, label: str) -> Row:
            if label != "0":
                barrier.wait(LONG_S)
            return super().fresh(label)

    with ExitStack() as stack:
        ranks = Ranks(stack, [Waiting() for _ in range(3)])
        ranks.publish(1)
        assert ranks.publisher.version.n == 2


def test_time_that_a_rank_takes_is_its_own() -> None:
    """The first to be waited for takes until the call of the last is over, in time or too late."""

    class Slow(Rank):
        def fresh(self, label: str) -> Row:
            if label != "0":
                last = ranks.parts[-1]
                eventually(lambda: last._running is not None and last._running.done())
            return super().fresh(label)

    with ExitStack() as stack:
        ranks = Ranks(stack, [Slow(), Rank()], last_s=LONG_S / 10)
        ranks.publish(1)


def test_ranks_take_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(3)
    settle = PartServer._settle

    def waiting(self: PartServer, *call: Any) -> Iterator[bytes]:
        barrier.wait(LONG_S / 10)
        yield from settle(self, *call)

    monkeypatch.setattr(PartServer, "_settle", waiting)
    with ExitStack() as stack:
        ranks = Ranks(stack, [Rank() for _ in range(3)])
        ranks.log._bytes_max = 1
        with pytest.raises(OutOfMemory):
            ranks.publish(1)
        assert ranks.publisher.is_sound


def test_client_with_another_token_or_layout_is_refused(trainer: Trainer) -> None:
    with pytest.raises(Unavailable, match="another token"):
        RemotePart(trainer.server.address, "00" * 32, TILES, "0", timeout_s=LONG_S)
    with pytest.raises(InvalidArgument, match="layouts of the publisher and of this rank differ"):
        RemotePart(
            trainer.server.address, trainer.server.token, Tiles.of(1000, 2 * TILE), "0",
            timeout_s=LONG_S,
        )  # fmt: skip
    with pytest.raises(Unavailable, match="no weights of step x"):
        trainer._opened("x")
    with pytest.raises(InvalidArgument):
        PartServer(THEIRS, TILES, trainer.rank.weights, "192.0.2.1:0")


def test_bytes_that_are_no_call_are_refused(trainer: Trainer) -> None:
    metadata = (("rose-token", trainer.server.token),)
    with grpc.insecure_channel(trainer.server.address) as channel:
        for method in ("Open", "Pack", "Settle", "Whole"):
            call = channel.unary_stream(f"/{messages.PARTS_SERVICE}/{method}")
            for content in (b"", b"x" * 28):
                with pytest.raises(grpc.RpcError):
                    list(call(content, timeout=LONG_S, metadata=metadata))
    trainer.publish(1)  # nobody is the worse for it


def sent(tile: int, frame: bytes) -> bytes:
    return messages.encode(messages.PartFrame(tile, frame))


class Lying(RemotePart):
    """A rank that sends malformed replies."""

    lie: Sequence[bytes] = ()

    def _messages(self, call: object) -> Iterator[bytes]:
        yield from self.lie or super()._messages(call)


def test_frames_that_no_rank_sends_make_no_version(trainer: Trainer) -> None:
    lying = trainer._parts.enter_context(
        Lying(trainer.server.address, trainer.server.token, TILES, "0", timeout_s=LONG_S)
    )
    own, theirs = (PackedPart() for _ in range(2))
    Contributor(Row(BITS[0].copy(), TILES), TILES, THEIRS).pack(Row(BITS[1], TILES), own)
    first, second = (sent(tile, own.frames[tile]) for tile in THEIRS[:2])
    stranger = sent(0, own.frames[1])
    swapped = sent(1, own.frames[3])
    for lie in ([second, first], [first, first], [stranger], [swapped], [b"xx"], [b""]):
        lying.lie = lie
        lying.begin(WeightsElsewhere("1"))
        with pytest.raises((CorruptData, InvalidArgument)):
            lying.pack(WeightsElsewhere("1"), theirs)


def test_cancelled_call_reports_no_packs(trainer: Trainer) -> None:
    remote, server = trainer.remote, trainer.server
    with grpc.insecure_channel(server.address) as channel:

        def call(method: str, ask: messages.PartAsk) -> list[bytes]:
            return list(
                channel.unary_stream(f"/{messages.PARTS_SERVICE}/{method}")(
                    messages.encode(ask), timeout=LONG_S, metadata=(("rose-token", server.token),)
                )
            )

        assert call("Pack", messages.PartAsk(remote._session, 2, 0, label="1"))
        with pytest.raises(grpc.RpcError):  # the publisher has gone on since
            call("Settle", messages.PartAsk(remote._session, 1, 0))
        came = call("Whole", messages.PartAsk(remote._session, 2, 2, tiles=tuple(THEIRS)))
    row = Row(BITS[1], TILES)
    for content in came:
        one = messages.decode(messages.PartFrame, content)
        assert one.frame == row.bits(one.tile).tobytes()


# ---- a trainer that does not answer


def closes(server: PartServer) -> bool:
    """Close a server, and return whether that ends."""
    thread = threading.Thread(target=server.close, daemon=True)
    thread.start()
    thread.join(LONG_S / 4)
    return not thread.is_alive()


def shadow_of(trainer: Trainer) -> list[tuple[int, int]]:
    contributor = trainer.server._contributor
    assert contributor is not None
    assert isinstance(contributor._shadow, ShardViews)
    return [contributor._shadow.digest(tile) for tile in THEIRS]


def test_closing_ignores_weights_that_arrive_later(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_server, "CLOSE_S", 0.1)
    trainer.rank.let_through.clear()
    trainer.remote.begin(WeightsElsewhere("1"))
    assert trainer.rank.asked.wait(LONG_S)
    assert closes(trainer.server)
    trainer.rank.let_through.set()
    trainer.server.close()
    row = Row(BITS[0], TILES)
    assert shadow_of(trainer) == [row.digest(tile) for tile in THEIRS]
    with pytest.raises(Unavailable):
        trainer.remote.pack(WeightsElsewhere("1"), PackedPart())


def test_failing_rank_loses_only_its_version(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(trainer.rank, "fresh", lambda _label: {}["no such step"])
        with pytest.raises(Unavailable, match="did not answer"):
            trainer.publish(1)
    trainer.publish(2)
    assert np.array_equal(trainer.whole_row(), BITS[2])
