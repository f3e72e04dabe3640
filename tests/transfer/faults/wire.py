"""The link between a receiver and its source: loses, damages, repeats and forges messages."""

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Final

from rose.errors import DeadlineExceeded, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.source import Frame, Source
from rose.transfer.wire.messages import ManifestsReply, decode, encode
from tests.transfer.faults.forger import (
    Frames,
    forged_frame,
    forged_snapshot,
    forged_update,
    misnamed,
)
from tests.transfer.faults.history import History

FAULTS: Final = (
    "drop",
    "duplicate",
    "reorder",
    "corrupt frame",
    "corrupt reply",
    "stall",
    "break off",
    "lose report",
    "forge frame",
    "forge update",
    "forge snapshot",
    "replay",
    "hide",
)
# What a relay, that has no key, must be spared by a link that is authentic.
LIES: Final = ("corrupt reply", "forge update", "forge snapshot", "replay")
# Old replies are kept for replay.
SEEN_MAX: Final = 40


class Wire:
    """A source with faults, each armed until it has happened; an honest one tells no lies.

    Args:
        upstream: what is at the other end; None while nobody is.
        history: what a liar knows of the weights.
        before: called at every call: other parts of the world go on, or end this process.
        pause: lets virtual seconds pass.
    """

    def __init__(
        self,
        upstream: Callable[[], Source | None],
        history: History,
        before: Callable[[], None],
        pause: Callable[[float], None],
    ) -> None:
        self.is_honest = False
        self._upstream = upstream
        self._history = history
        self._before = before
        self._pause = pause
        self._armed: dict[str, Random] = {}
        self._seen: list[Manifest] = []
        self._passed: Frames = {}
        self._forged: Frames = {}
        self._replays_left = 0

    def arm(self, fault: str, number: int) -> None:
        if self.is_honest and fault in LIES:
            return
        self._armed[fault] = Random(number)
        if fault == "replay":
            self._replays_left = 1 + number % 6

    def repair(self) -> None:
        self._armed.clear()
        self._forged.clear()
        self._replays_left = 0

    # ---- what a receiver calls

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        offered = self._reached().wait_manifests(after_n, 0)
        if not offered:
            self._pause(timeout_s)
        self._seen = [*self._seen, *offered][-SEEN_MAX:]
        if rng := self._due("hide"):
            offered = offered[: rng.randint(0, len(offered))]
        if rng := self._replaying():
            offered = self._replayed(offered, rng)
        if offered and (rng := self._due("forge update")):
            offered = self._with_forged(offered, rng)
        return self._carried(offered)

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        true = self._reached().snapshot(n, tiles)
        if true is None:
            return None
        self._seen = [*self._seen, true][-SEEN_MAX:]
        offered = true
        if rng := self._due("forge snapshot"):
            offered, frames = forged_snapshot(true, tiles, self._history, rng)
            self._forged.update(frames)
        if rng := self._replaying():
            offered = rng.choice([one for one in self._seen if _answers(one, tiles)])
        carried = self._carried([offered])
        return carried[0] if carried else None

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        source = self._reached()
        left = rng.randint(0, len(wanted)) if (rng := self._due("break off")) else None
        if rng := self._due("reorder"):
            wanted = rng.sample(wanted, len(wanted))
        if wanted and (rng := self._due("drop")):
            wanted = rng.sample(wanted, rng.randrange(len(wanted)))
        if wanted and (rng := self._due("duplicate")):
            wanted = [*wanted, rng.choice(wanted)]
        for at, (tile, frame) in enumerate(source.chunks(key, wanted)):
            if at == left:
                raise Unavailable("planted: the connection broke")
            self._reached()
            yield tile, self._sent(key, tile, frame)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        source = self._reached()
        rng = self._due("lose report")
        if rng and rng.random() < 0.5:
            raise Unavailable("planted: the report was lost")
        source.report(receiver, n, is_match, digest)
        if rng:
            raise Unavailable("planted: the answer to the report was lost")

    # ---- what happens to it

    def _reached(self) -> Source:
        self._before()
        if self._due("stall"):
            self._pause(30.0)
            raise DeadlineExceeded("planted: nothing came for too long")
        source = self._upstream()
        if source is None:
            raise Unavailable("nobody is there")
        return source

    def _due(self, fault: str) -> Random | None:
        return self._armed.pop(fault, None)

    def _replaying(self) -> Random | None:
        """Return what draws the replay while there is one; it goes on over several calls."""
        if not self._replays_left:
            return None
        self._replays_left -= 1
        return self._armed.get("replay")

    def _replayed(self, offered: list[Manifest], rng: Random) -> list[Manifest]:
        if not self._seen:
            return offered
        old = rng.sample(self._seen, rng.randint(1, len(self._seen)))
        return old if rng.random() < 0.5 else [*old, *offered]

    def _with_forged(self, offered: list[Manifest], rng: Random) -> list[Manifest]:
        true = rng.choice(offered)
        if rng.random() < 0.3:
            return [*offered, misnamed(true, rng)]
        made = forged_update(true, self._history, rng)
        if made is None:
            return offered
        false, frames = made
        self._forged.update(frames)
        others = [one for one in offered if one.key != false.key]
        return [*others, false]

    def _carried(self, manifests: list[Manifest]) -> list[Manifest]:
        """Bring a reply over as bytes, of which some may be others on arrival."""
        rng = self._due("corrupt reply")
        if rng is None:
            return manifests
        content = bytearray(encode(ManifestsReply(tuple(manifests), 1)))
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return list(decode(ManifestsReply, bytes(content)).manifests)

    def _sent(self, key: UpdateKey, tile: int, frame: Frame | None) -> Frame | None:
        if frame is not None:
            self._passed[key, tile] = bytes(frame)
        elif self._replays_left:
            frame = self._passed.get((key, tile))
        frame = self._forged.pop((key, tile), frame)
        if frame is None:
            return None
        if rng := self._due("forge frame"):
            return forged_frame(bytes(frame), rng)
        if rng := self._due("corrupt frame"):
            content = bytearray(frame)
            if rng.random() < 0.2:
                return content[: rng.randrange(len(content))]
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            return content
        return frame


def _answers(manifest: Manifest, tiles: Sequence[int]) -> bool:
    """Whether a snapshot is one that was asked for, by its tiles."""
    return manifest.is_snapshot and [chunk.tile for chunk in manifest.chunks] == list(tiles)
