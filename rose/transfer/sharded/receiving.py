"""A rank of an engine: follows a sharded trainer, and commits together with the other ranks."""

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from rose.clock import BootClock
from rose.closing import Closing, Once, weakly
from rose.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidArgument,
    RoseError,
    Unavailable,
    sentence,
)
from rose.transfer.digests import Digest, hexadecimal
from rose.transfer.manifest import Manifest, Subscription, Version
from rose.transfer.plan import Places, TensorSpec
from rose.transfer.plan.files import ShardFile, places_from_json, shards_from_json, shards_to_json
from rose.transfer.received import WeightReceiver
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.sharded.barrier import Verdict
from rose.transfer.sharded.joining import PAUSE_S, join
from rose.transfer.sharded.patience import Patience
from rose.transfer.sharded.shards import Shards
from rose.transfer.sharded.words import (
    ANSWER_S,
    Aim,
    Aimed,
    AskTensors,
    Join,
    Meet,
    Met,
    Tensors,
    answer_of,
    packed,
)
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import SourceAround
from rose.transfer.tiles import ShardViews
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.security import TlsFiles
from rose.units import NS_PER_S

# Interval at which a wait looks for another plan of the publisher, in seconds.
_LOOK_S: Final = 0.2
# Digests of versions that are remembered until their commit.
_DIGESTS_MAX: Final = 8


class RankMemory(Protocol):
    """The tensors of a rank, into which versions are written."""

    @property
    def file(self) -> ShardFile:
        """Return the rank's shard map."""
        ...

    def views(self, places: Places) -> ShardViews:
        """Return tiles as views of the memory, for the next commits."""
        ...

    def name_of(self, tile: int) -> str:
        """Return the parameter in which a tile is."""
        ...

    def check(self) -> None:
        """Check that the engine still uses this memory.

        Raises:
            InvalidArgument: a tensor was moved to other memory; the message names it.
        """
        ...

    def load(self, tiles: Iterable[int]) -> None:
        """Pass tensors that the loader computes with to it, after these tiles were changed."""
        ...

    def undo(self) -> None:
        """Restore what the last `load` wrote."""
        ...

    def settle(self) -> None:
        """Make the last `load` final."""
        ...


# Finds the places of a checkpoint's tensors in a rank's memory.
Place = Callable[[Sequence[TensorSpec]], RankMemory]


class AimedSource(SourceAround):
    """Offers only the version that the ranks of an engine should stage next.

    The receiver's thread uses it.

    Args:
        source: the publisher.
        aim: asks the publisher for the version above a number, within a time in seconds; names a
            version that it could not make.
    """

    def __init__(
        self,
        source: RemoteSource,
        aim: Callable[[int, float, Version | None], Version | None],
    ) -> None:
        super().__init__(source)
        self._aim = aim
        self._gone: Version | None = None
        self._target: Version | None = None
        self.digests: dict[Version, Digest] = {}  # of all weights, by version

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for the next version; return the updates that lead to it.

        While there is none, the last one is offered to a receiver that asks for older numbers.
        """
        gone, self._gone = self._gone, None
        aimed = self._aim(after_n, timeout_s, gone)
        self._target = target = aimed or self._target
        if target is None or target.n <= after_n:
            return []
        offered = self._source.wait_manifests(target.n - 1, 0)
        return self._noted([one for one in offered if one.version == target])

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for a snapshot of the next version, or of the version `n`."""
        target = self._target
        if n is None and target is None:
            return None
        made = self._source.snapshot(target.n if n is None and target else n, tiles)
        if made is None and target is not None and n in {None, target.n}:
            self._gone = target
        return None if made is None else self._noted([made])[0]

    def _noted(self, manifests: list[Manifest]) -> list[Manifest]:
        for one in manifests:
            self.digests[one.version] = one.digest
            if len(self.digests) > _DIGESTS_MAX:
                del self.digests[next(iter(self.digests))]
        return manifests


@dataclass(slots=True)
class _Open:
    """A commit that the other ranks have not confirmed yet.

    Args:
        commit: the commit.
        version: its version.
        number: round at the barrier; None for a repair of this rank alone.
        failure: why this rank failed; "" if it has committed.
    """

    commit: Commit
    version: Version
    number: int | None
    failure: str = "the commit was interrupted"


class ShardReceiver(Closing):
    """Tensors of one rank of an engine, which follow a sharded trainer.

    A background thread fetches and checks versions. Only `commit` changes the tensors, in the
    caller's thread; all ranks of the engine call it at the same step.

    Args:
        place: function that finds the places of a checkpoint's tensors in the rank's memory.
        upstream: address of rank 0 of the trainer.
        shards: the rank.
        token: token of the publisher.
        tls: certificates for both sides.
        signing: signing key of versions.
        scrub_s: time in which a background thread compares all tiles with their digests.

    Raises:
        InvalidArgument: the tensors do not fit the trainer's; the message names one.
        DeadlineExceeded: the publisher or another rank did not start in time.
    """

    def __init__(
        self,
        place: Place,
        upstream: str,
        shards: Shards,
        *,
        token: str,
        tls: TlsFiles | None = None,
        signing: Signing = UNSIGNED,
        scrub_s: float,
    ) -> None:
        self._once = Once()
        self._clock = BootClock()
        self._shards, self._signing = shards, signing
        self._replica = shards.replica or "engine"
        self._who = f"rank {shards.rank} of {self._replica}"
        self._barrier_s, self._within_s = shards.barrier_s, shards.within_s
        self._scrub_s = scrub_s
        self._is_moved = threading.Event()  # the publisher has another plan, or is another one
        self._open: _Open | None = None
        self._is_lost = False  # this rank must join again as a new process
        self._agreed: Version | None = None
        self._digest: Digest = (0, 0)
        self._inner: WeightReceiver | None = None
        with ExitStack() as undo:
            self._source = RemoteSource(upstream, token, tls=tls)
            undo.callback(self._source.close)
            self._memory = place(self._tensors())
            self._file = shards_to_json(self._memory.file)
            self._enter(secrets.token_hex(8), shards.within_s)
            undo.pop_all()

    @property
    def version(self) -> int | None:
        """Number of the version in the tensors of all ranks; None before the first commit."""
        return None if self._agreed is None else self._agreed.n

    @property
    def digest(self) -> str:
        """Published digest of the version in the tensors, as 32 hexadecimal digits."""
        return hexadecimal(self._digest)

    def wait(self, timeout_s: float) -> None:
        """Wait until a newer version is ready to commit on this rank.

        Raises:
            DeadlineExceeded: no version was ready in time; the message has the cause, if known.
        """
        until_s = self._now_s() + timeout_s
        while True:
            left_s = until_s - self._now_s()
            inner = self._followed(max(0.0, left_s))
            with suppress(DeadlineExceeded):
                inner.wait(max(0.0, min(left_s, _LOOK_S)))
                return
            if left_s <= 0:
                reason = inner.failure
                raise DeadlineExceeded(
                    f"no new version was ready within {timeout_s:g} s"
                    + (f": {reason}" if reason else "")
                )

    def commit(self) -> int | None:
        """Write the ready version into the tensors of all ranks, or of none.

        Call it on all ranks between two steps of the engine, after `wait`. It waits for the other
        ranks. After an error all tensors have their old values, unless the message says that this
        is unknown; the next `wait` and `commit` try again.

        Returns:
            The version's number; None if no version is ready.

        Raises:
            DeadlineExceeded: another rank did not take part in time; the message names it.
            CorruptData: the weights of a rank were changed by someone else; the message names it.
            Unavailable: the publisher does not answer, or was restarted. If all ranks were ready
                before, ranks may hold different versions until the next commit; the message says
                so.
        """
        self._once.check_open("this receiver")
        if self._open is not None:
            with self._here().lock:
                return self._end(self._open)
        inner = self._followed(self._barrier_s)
        with inner.lock:
            version = self._checked(inner)
            if version is None:
                return None
            is_repair = version == self._agreed  # of this rank alone
            number = None if is_repair else self._meet(version)
            commit = inner.take()
            if commit is None or commit.staged.manifest.version != version:
                self._met(version, number, "its staged version was dropped")
                return None
            if number is None and not is_repair:  # another version is the next one
                commit.abandon()
                inner.settle(commit)
                return None
            return self._commit(commit, number)

    def close(self) -> None:
        """Stop receiving; the tensors keep their version."""
        self._once(self._close)

    def _close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        self._source.close()

    # ---- joining

    def _tensors(self) -> list[TensorSpec]:
        """Return the trainer's tensors; wait for the trainer."""
        patience = Patience(self._who, self._within_s, clock=self._clock)
        while True:
            reason = "the ranks of the trainer"
            try:
                content = self._source.gather(packed(AskTensors()), ANSWER_S)
            except Unavailable as error:
                reason = f"the publisher: {error}"
                self._clock.sleep(PAUSE_S)
            else:
                if (answer := answer_of(content, Tensors)).shards:
                    found = shards_from_json(answer.shards, what="the trainer's tensors")
                    return list(found.shards.tensors.values())
            patience.wait_for(reason)

    def _enter(self, session: str, within_s: float) -> None:
        """Join the engine, and follow the versions of the present plan."""
        if self._inner is not None:
            self._inner.close()
            self._inner = None
        self._is_lost = False
        self._is_moved.clear()
        shards = self._shards
        call = Join(self._replica, shards.rank, shards.ranks, session, self._file)
        joined = join(self._source, call, self._who, within_s)
        file = places_from_json(joined.places, what="the part of the plan")
        self._session, self._epoch, self._layout = session, joined.epoch, joined.layout
        self._aimed = AimedSource(self._source, weakly(self._aim))
        target = self._memory.views(file.places)
        self._inner = WeightReceiver(
            target,
            Subscription(file.cut, target.tiles),
            self._aimed,
            name=f"{self._replica} rank {shards.rank}",
            signing=self._signing,
            place=self._memory.name_of,
            check=self._memory.check,
            scrub_s=self._scrub_s,
        )

    def _aim(self, after_n: int, timeout_s: float, gone: Version | None) -> Version | None:
        """Return the version to stage next; called by the receiver's thread."""
        call = Aim(
            self._epoch, self._replica, self._shards.rank, self._session, after_n, timeout_s, gone
        )
        answer = answer_of(self._source.gather(packed(call), timeout_s), Aimed)
        if answer.epoch != self._epoch or answer.layout != self._layout:
            self._is_moved.set()
            self._clock.sleep(timeout_s)
            return None
        inner, target = self._inner, answer.target
        is_older = target is not None and target.n <= after_n
        if is_older and inner is not None and inner.held != target:
            inner.choose_anew()  # a later one was given up, as when a rank was restarted
        return target

    def _followed(self, within_s: float) -> WeightReceiver:
        """Return the receiver of the present plan, after the end of an open commit.

        Raises:
            DeadlineExceeded: the publisher has another plan, and joining it takes longer.
            Unavailable: the publisher does not answer, so the result of a commit is unknown.
        """
        self._once.check_open("this receiver")
        if self._open is not None:
            with self._here().lock, suppress(CorruptData, DeadlineExceeded):
                self._end(self._open)
        if self._inner is None or self._is_lost:
            self._enter(secrets.token_hex(8), within_s)
        elif self._is_moved.is_set():
            self._enter(self._session, within_s)
        return self._here()

    def _here(self) -> WeightReceiver:
        if self._inner is None:
            raise Unavailable(f"{self._who} has not joined")
        return self._inner

    # ---- committing: the receiver's lock is held

    def _checked(self, inner: WeightReceiver) -> Version | None:
        """Return the ready version, if the rank can commit it; otherwise the others need not wait.

        Raises:
            CorruptData: somebody else wrote to the tensors.
            InvalidArgument: tensors were moved to other memory.
        """
        try:
            return inner.check_ready()
        except (CorruptData, InvalidArgument) as error:
            if inner.ready is not None:
                with suppress(Unavailable):
                    self._met(inner.ready, None, sentence(error))
            raise

    def _meet(self, version: Version) -> int | None:
        """Wait until all ranks are ready; return the round, or None if another version is next.

        Raises:
            DeadlineExceeded: a rank was not ready in time.
            Unavailable: the publisher does not answer in time.
        """
        patience = Patience(self._who, self._barrier_s, clock=self._clock)
        while True:
            try:
                met = self._met(version)
            except Unavailable as error:
                self._wait_again(patience, error, f"version {version.n} was not committed")
                continue
            if met.epoch != self._epoch or met.verdict is Verdict.MOVED:
                return None
            if met.verdict is Verdict.COMMIT:
                return met.number
            if met.verdict is Verdict.UNDO:
                raise DeadlineExceeded(
                    f"version {version.n} was not committed, on no rank: {met.reason}"
                )

    def _met(self, version: Version, number: int | None = None, failure: str = "") -> Met:
        shards = self._shards
        call = Meet(
            self._epoch, self._replica, shards.rank, self._session, version, self._barrier_s,
            number, failure,
        )  # fmt: skip
        return answer_of(self._source.gather(packed(call), ANSWER_S), Met)

    def _commit(self, commit: Commit, number: int | None) -> int:
        """Commit on this rank, then wait for the other ranks."""
        staged = commit.staged
        self._open = now = _Open(commit, staged.manifest.version, number)
        outcome = commit.run()
        if outcome.state is CommitState.COMMITTED:
            try:
                self._memory.load(staged.tiles)
            except RoseError as error:
                now.failure = sentence(error)
            else:
                now.failure = ""
        else:
            now.failure = outcome.reason or "it was rolled back"
        return self._end(now)

    def _end(self, now: _Open) -> int:
        """Keep or undo a commit, as all ranks do."""
        verdict, reason = self._verdict(now)
        self._open = None
        if verdict is Verdict.KEEP:
            self._keep(now)
            return now.version.n
        self._undo(now, reason)
        if verdict is Verdict.MOVED:
            raise Unavailable(
                f"version {now.version.n} was undone on this rank, and until the next commit "
                f"another rank may have it: {reason}"
            )
        what = f"version {now.version.n} was not committed, on no rank: {reason}"
        raise CorruptData(what) if "could not commit" in reason else DeadlineExceeded(what)

    def _verdict(self, now: _Open) -> tuple[Verdict, str]:
        """Wait for the decision on a commit; `MOVED` if the publisher no longer knows it.

        Raises:
            Unavailable: the publisher does not answer in time.
        """
        if now.number is None:
            return (Verdict.UNDO if now.failure else Verdict.KEEP), now.failure
        patience = Patience(self._who, self._barrier_s, clock=self._clock)
        while True:
            try:
                met = self._met(now.version, now.number, now.failure)
            except InvalidArgument as error:  # the publisher does not know this process or round
                self._is_lost = True
                return Verdict.MOVED, sentence(error)
            except Unavailable as error:
                self._wait_again(
                    patience,
                    error,
                    f"whether all ranks of {self._replica} committed version {now.version.n} is "
                    "unknown: call commit again before the next step",
                )
                continue
            if met.epoch != self._epoch:
                return Verdict.MOVED, "the publisher was restarted"
            if met.verdict is not Verdict.WAIT:
                return met.verdict, met.reason

    def _wait_again(self, patience: Patience, error: Unavailable, otherwise: str) -> None:
        try:
            patience.wait_for(sentence(error))
        except DeadlineExceeded:
            raise Unavailable(f"{otherwise} ({sentence(error)})") from None
        self._clock.sleep(PAUSE_S)

    def _keep(self, now: _Open) -> None:
        self._memory.settle()
        self._here().settle(now.commit)
        self._agreed = now.version
        self._digest = self._aimed.digests.get(now.version, now.commit.outcome.digest)

    def _undo(self, now: _Open, reason: str) -> None:
        self._memory.undo()
        if now.commit.state is CommitState.COMMITTED:
            now.commit.take_back(reason)
        if self._is_lost or now.commit.state is CommitState.QUARANTINED:
            self._is_lost, self._agreed = True, None
        else:
            self._here().settle(now.commit)

    def _now_s(self) -> float:
        return self._clock.now_ns() / NS_PER_S
