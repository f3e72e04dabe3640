"""`rose.publish` and `rose.receive`: copy weights of a training loop to other processes."""

import math
import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rose.clock import BootClock
from rose.closing import Closing, Once
from rose.config import quiet_grpc
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.codec.tensor import bits_of
from rose.transfer.digests import TileDigests, hexadecimal
from rose.transfer.manifest import NAMELESS, Subscription, Version
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.selection import Selection
from rose.transfer.publishing.shadow_memory import ShadowMemory
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.signing import Signing
from rose.transfer.tensors import StoredTensor
from rose.units import NS_PER_S

Tensors = Mapping[str, Any]
Tls = tuple[str | Path, str | Path, str | Path]

_RUN: Final = "rose"
# Dtype name in NumPy and torch → name in a safetensors file.
_STORED: Final = {
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
}


def publish(
    tensors: Tensors,
    *,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    first_version: int = 1,
    largest: float | None = None,
) -> "WeightPublisher":
    """Serve weights and their changes to `rose.receive` and `rose receive`.

    Args:
        tensors: name → NumPy array or torch tensor, such as `model.state_dict()`; integers or
            floats of 8, 16 or 32 bits. Tensors that share memory are published once, under their
            first name. On the tensors' device rose keeps a copy of the weights that receivers hold.
        listen: host and port; port 0 picks a free port.
        token: 64 hexadecimal digits that receivers must present; None: a random token.
        tls: PEM files (certificate, key, authority), required for receivers on other machines.
        manifest_key: signing key. Receivers with this key accept only versions that were signed
            with it, through any relay. b"": no signatures.
        first_version: version number of these weights. A restarted training run must pass a number
            above all numbers that it published before.
        largest: most elements that one version may change in a bf16 tensor, as a share in (0, 1].
            The largest changes are sent first, and a change that waited for 255 versions is sent
            too. So receivers lag slightly behind. None: every change is sent at once.

    Raises:
        InvalidArgument: a dtype is not supported, `largest` is out of range, or `listen` is no
            loopback address and `tls` is missing.
        Unavailable: the port is taken.
    """
    return WeightPublisher(
        tensors,
        listen=listen,
        token=token,
        tls=tls,
        manifest_key=manifest_key,
        first_version=first_version,
        largest=largest,
    )


def receive(
    tensors: Tensors,
    upstream: str,
    *,
    token: str,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    name: str | None = None,
) -> "WeightReceiver":
    """Follow a publisher: `commit` updates the tensors in place to the newest version.

    Args:
        tensors: name → array or tensor, with the publisher's names, dtypes and shapes. They may
            hold any values: only tiles that differ are fetched. Nobody else may write to them.
        upstream: address of `rose.publish`, `rose publish` or `rose relay`.
        token: the publisher's token.
        tls: PEM files (certificate, key, authority), required if `upstream` is on another machine.
        manifest_key: the publisher's signing key; versions with another signature are refused.
        name: unique name of this receiver; None: a random name.

    Raises:
        InvalidArgument: the tensors differ from the publisher's, or cannot be written in place.
        Unavailable: `upstream` does not answer, or has no weights yet.
    """
    return WeightReceiver(
        tensors, upstream, token=token, tls=tls, manifest_key=manifest_key, name=name
    )


class WeightPublisher(Closing):
    """Publishes the weights of a training loop; made by `rose.publish`. For use by one thread."""

    def __init__(
        self,
        tensors: Tensors,
        *,
        listen: str,
        token: str | None,
        tls: Tls | None,
        manifest_key: bytes,
        first_version: int,
        largest: float | None,
    ) -> None:
        self._once = Once()
        quiet_grpc()
        # Imported here: they need the extra `wire`, and gRPC reads its log level at import.
        from rose.transfer.wire.messages import TensorEntry  # noqa: PLC0415
        from rose.transfer.wire.peers import Peers  # noqa: PLC0415
        from rose.transfer.wire.server import serve  # noqa: PLC0415

        stored, units = _units_of(tensors)
        self._tiling = plain_tiling(stored)
        self._stored = stored
        cut = self._tiling.tiles
        bf16 = {one.name for one in stored if one.dtype == "BF16"}
        selected = None if largest is None else Selection(share=largest)
        selections = {
            tile: selected
            for tile in range(len(cut))
            if selected is not None and self._tiling.place(tile).tensor in bf16
        }
        memory = ShadowMemory(units.values())
        shadow = Contributor(
            self._tiling.views({name: memory.copy(row) for name, row in units.items()}),
            cut,
            selections=selections,
        )
        self._log = VersionLog()
        # The first number exceeds all earlier numbers, so it also serves as the incarnation.
        opening = Version(_RUN, first_version, first_version)
        signing = Signing(manifest_key)
        self._publisher = Publisher(
            [shadow], cut, opening, self._log, signing=signing, memory=memory
        )
        entries = [TensorEntry(one.name, one.dtype, one.shape) for one in stored]
        with ExitStack() as undo:
            undo.callback(self._log.close)
            self._server = serve(
                self._log,
                listen,
                token=token,
                tls=_tls_files(tls),
                peers=Peers(_RUN, layout=cut.layout, tensors=entries),
            )
            undo.pop_all()

    @property
    def address(self) -> str:
        """Host and port for receivers."""
        return self._server.address

    @property
    def token(self) -> str:
        """Token that receivers must present."""
        return self._server.token

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self._publisher.version.n

    def update(self, tensors: Tensors) -> int:
        """Publish the changes as the next version, and return its number.

        Args:
            tensors: the new weights, with the same names, dtypes and shapes. They are not modified.

        Raises:
            InvalidArgument: names, dtypes or shapes differ from those of `rose.publish`.
            OutOfMemory: memory is not sufficient for the changes. After any error no version was
                published.
        """
        self._once.check_here("a publisher")
        stored, units = _units_of(tensors)
        if stored != self._stored:
            raise InvalidArgument(_difference(self._stored, stored, "those published before"))
        return self._publisher.publish(self._tiling.views(units)).version.n

    def close(self) -> None:
        """Stop serving; receivers keep their weights."""
        self._once(self._close)

    def _close(self) -> None:
        self._server.close()
        self._log.close()


class WeightReceiver(Closing):
    """Tensors that follow a publisher; made by `rose.receive`.

    A background thread fetches and checks versions. Only `commit` changes the tensors, in the
    caller's thread.
    """

    def __init__(
        self,
        tensors: Tensors,
        upstream: str,
        *,
        token: str,
        tls: Tls | None,
        manifest_key: bytes,
        name: str | None,
    ) -> None:
        self._once = Once()
        quiet_grpc()
        # Imported here: the module needs the extra `wire`, and gRPC reads its log level at import.
        from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415

        stored, units = _units_of(tensors, is_written=True)
        tiling = plain_tiling(stored)
        self._target = tiling.views(units)
        self._subscription = Subscription(tiling.tiles)
        self._signing = Signing(manifest_key)
        self._name = name if name is not None else f"rose-{secrets.token_hex(8)}"
        self._staged = threading.Event()
        self._clock = BootClock()
        with ExitStack() as undo:
            self._source = RemoteSource(upstream, token, tls=_tls_files(tls))
            undo.callback(self._source.close)
            hello = self._source.hello()
            if not hello.layout:
                raise Unavailable(f"{upstream} has no weights yet: retry once they are published")
            if hello.layout != tiling.tiles.layout:
                theirs = [StoredTensor(one.name, one.dtype, one.shape) for one in hello.tensors]
                raise InvalidArgument(_difference(theirs, stored, f"those of {upstream}"))
            self._receiver = self._begun()
            undo.pop_all()

    def _begun(self) -> Receiver:
        """Start a receiver; until the first commit it writes into the tensors."""
        self._digests: TileDigests | None = None
        return Receiver(
            self._source,
            self._name,
            NAMELESS,
            None,
            self._subscription,
            self._staged.set,
            base=self._target.bits,
            signing=self._signing,
            lands=self._target,
        )

    @property
    def version(self) -> int | None:
        """Number of the version in the tensors; None before the first commit."""
        held = self._receiver.held
        return held.n if held.run else None

    @property
    def digest(self) -> str:
        """Digest of the version in the tensors, as 32 hexadecimal digits."""
        return hexadecimal(self._receiver.digest)

    def wait(self, timeout_s: float) -> None:
        """Wait until a newer version is ready to commit.

        Raises:
            DeadlineExceeded: no version was ready in time; the message has the cause, if known.
        """
        self._once.check_here("a receiver")
        deadline_s = self._clock.now_ns() / NS_PER_S + timeout_s
        while self._receiver.staged_version is None:
            left_s = deadline_s - self._clock.now_ns() / NS_PER_S
            if left_s <= 0:
                reason = self._receiver.failure
                raise DeadlineExceeded(
                    f"no new version was ready within {timeout_s:g} s"
                    + (f": {reason}" if reason else "")
                )
            self._staged.wait(left_s)
            self._staged.clear()

    def commit(self) -> int | None:
        """Write the ready version into the tensors; call it between two steps of the engine.

        Returns:
            The version's number; None if no version is ready.

        Raises:
            CorruptData: someone else changed the tensors, or a digest differs. The old values are
                restored; if that fails too, the tensors hold no known version. A later `commit`
                repairs them.
        """
        self._once.check_here("a receiver")
        staged = self._receiver.take_staged()
        if staged is None:
            return None
        commit = Commit(staged, self._target, self._receiver.digest, digests=self._digests)
        try:
            outcome = commit.run()
        finally:
            self._settle(commit)
        if outcome.state is not CommitState.COMMITTED:
            raise CorruptData(f"version {outcome.version.n} was not committed: {outcome.reason}")
        return outcome.version.n

    def _settle(self, commit: Commit) -> None:
        """Continue from the tensors' present state, also after an interrupt."""
        if commit.state is CommitState.QUARANTINED:
            self._receiver.close()
            self._receiver = self._begun()
        else:
            self._digests = commit.digests
            self._receiver.report(commit.outcome)

    def close(self) -> None:
        """Stop receiving; the tensors keep their version."""
        self._once(self._close)

    def _close(self) -> None:
        self._receiver.close()
        self._source.close()


def _units_of(
    tensors: Tensors, *, is_written: bool = False
) -> tuple[list[StoredTensor], dict[str, Any]]:
    """Return dtypes and shapes of tensors, sorted by name, and flat views of their elements.

    Tensors that share memory appear once, under their first name.

    Raises:
        InvalidArgument: there are no tensors, a dtype is not supported, or a tensor cannot be
            written in place.
    """
    stored: list[StoredTensor] = []
    units: dict[str, Any] = {}
    seen: set[tuple[int, int]] = set()
    for name, tensor in tensors.items():
        found = bits_of(name, tensor, is_written=is_written)
        row = found.bits.reshape(-1)
        count = math.prod(found.shape)
        place = _place(found.bits), count
        if count and place in seen:
            continue
        if is_written and _place(row) != place[0]:
            raise InvalidArgument(
                f"{name} must be contiguous, since commit changes tensors in place"
            )
        seen.add(place)
        units[name] = row
        stored.append(StoredTensor(name, _STORED[found.dtype], found.shape))
    if not stored:
        raise InvalidArgument("tensors must have at least one entry, got none")
    return sorted(stored, key=lambda one: one.name), units


def _place(bits: Any) -> int:
    return int(bits.data_ptr() if hasattr(bits, "data_ptr") else bits.ctypes.data)


def _tls_files(tls: Tls | None) -> Any:
    from rose.transfer.wire.security import TlsFiles  # noqa: PLC0415 (needs the extra `wire`)

    return None if tls is None else TlsFiles(*map(Path, tls))


def _difference(theirs: list[StoredTensor], ours: list[StoredTensor], what: str) -> str:
    """Return an error sentence about the first tensor that differs."""
    here = {one.name: one for one in ours}
    for one in sorted(theirs, key=lambda one: one.name):
        own = here.pop(one.name, None)
        if own is None:
            return f"the tensors must be {what}: {one.name} is missing"
        if (own.dtype, own.shape) != (one.dtype, one.shape):
            return (
                f"the tensors must be {what}: {one.name} is {own.dtype} {own.shape}, "
                f"not {one.dtype} {one.shape}"
            )
    extra = next(iter(here), None)
    if extra is None:
        return (
            f"the tensors must be {what}, and that publisher divides tensors by a plan: use "
            f"`rose receive --plan`"
        )
    return f"the tensors must be {what}: {extra} is not among them"
