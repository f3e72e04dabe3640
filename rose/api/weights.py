"""`rose.publish` and `rose.receive`: other processes follow the weights of a training loop."""

import math
import secrets
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from rose.clock import VERSION_EPOCH_MS, unix_ms
from rose.config import quiet_grpc
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.places import Places
from rose.transfer.manifest import Subscription, Version
from rose.transfer.named import (
    NamedRow,
    Names,
    Tensors,
    matched,
    named_rows,
    placed_views,
    tensors_by_name,
)
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.published import WeightPublisher
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.received import SCRUB_S, WeightReceiver
from rose.transfer.sharded.shards import Shards
from rose.transfer.signing import Signing
from rose.transfer.tensors import StoredTensor
from rose.transfer.wire.security import Security, TlsFiles

if TYPE_CHECKING:  # they need the extra `wire`
    from rose.transfer.sharded.publishing import LeadPublisher, RankPublisher
    from rose.transfer.sharded.receiving import ShardReceiver

Tls: TypeAlias = tuple[str | Path, str | Path, str | Path]

_NAME_MAX: Final = 256  # what a report of a receiver has room for


@overload
def publish(
    tensors: Tensors,
    *,
    listen: str = ...,
    token: str | None = ...,
    tls: Tls | None = ...,
    manifest_key: bytes = ...,
    run: str | None = ...,
    first_version: int | None = ...,
    names: Names | None = ...,
    encoding: Encoding | None = ...,
    largest: float | None = ...,
    plan: Plan | None = ...,
    shards: None = ...,
    metrics: str | None = ...,
) -> WeightPublisher: ...
@overload
def publish(
    tensors: Tensors,
    *,
    listen: str = ...,
    token: str | None = ...,
    tls: Tls | None = ...,
    manifest_key: bytes = ...,
    run: str | None = ...,
    first_version: int | None = ...,
    encoding: Encoding | None = ...,
    shards: Shards,
) -> "LeadPublisher | RankPublisher": ...
def publish(
    tensors: Tensors,
    *,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    run: str | None = None,
    first_version: int | None = None,
    names: Names | None = None,
    encoding: Encoding | None = None,
    largest: float | None = None,
    plan: Plan | None = None,
    shards: Shards | None = None,
    metrics: str | None = None,
) -> "WeightPublisher | LeadPublisher | RankPublisher":
    """Serve weights and their changes to `rose.receive` and `rose receive`.

    Args:
        tensors: name → NumPy array or torch tensor, or a module. Tensors that share all memory are
            published once, and receivers may hold them under any of their names. Names that
            wrappers add (`module.`, `_orig_mod.`, `base_model.model.`) are removed. On the tensors'
            device rose keeps a copy of the weights that receivers hold.
        listen: host and port; port 0 picks a free port.
        token: 64 hexadecimal digits that receivers must present; None: a random token.
        tls: PEM files (certificate, key, authority), required for receivers on other machines.
        manifest_key: signing key. Receivers with this key accept only versions that were signed
            with it, through any relay. b"": no signatures.
        run: name of the training run; None: a new name. Receivers of another run join anew.
        first_version: number of these weights. None: 1, or, if port and token are given, so that
            receivers of an earlier publisher may come, the milliseconds since 2025-01-01: a number
            above the earlier ones.
        names: own name → published name, as a mapping or a function; see `named_rows`.
        encoding: "strat" sends about a quarter fewer bytes than "gap", and takes more time to pack
            and to unpack. None: "strat" while the round trip to a receiver is 2 ms or longer, as
            between sites, and "gap" otherwise.
        largest: most elements that one version may change in a bf16 tensor, as a share in (0, 1].
            The largest changes are sent first, and a change that waited for 255 versions is sent
            too. So receivers lag slightly behind: `drift` says how much. None: every change is
            sent at once.
        plan: plan that cuts the tensors into tiles for sharded receivers; None: whole tensors.
        shards: rank of this process, if each rank of the trainer holds a part of the tensors, as
            under FSDP2, HSDP and tensor parallelism. All ranks call with the same token and with
            rank 0's address in `listen`, wait for each other, and then call `update` in step. None:
            these tensors are whole.
        metrics: address for Prometheus; None: no metrics.

    Raises:
        InvalidArgument: a name or dtype is not supported, `largest` is out of range or there is no
            bf16 tensor, or `listen` is no loopback address and `tls` is missing.
        Unavailable: the port is taken.
    """
    security = Security.of(token, _files(tls))
    _check_types(run=(run, str), first_version=(first_version, int), shards=(shards, Shards))
    run = run or f"rose-{secrets.token_hex(4)}"
    if first_version is None:
        is_found_again = token is not None and security.place(listen)[1] != 0
        # No trainer publishes a version per millisecond, so a later start has a higher number.
        first_version = unix_ms() - VERSION_EPOCH_MS if is_found_again else 1
    opening = Version(run, unix_ms(), first_version)
    if shards is not None:
        if any(one is not None for one in (names, largest, plan, metrics)):
            raise InvalidArgument("shards= excludes names=, largest=, plan= and metrics=")
        return _rank_publisher(
            tensors,
            shards,
            listen=listen,
            token=token,
            tls=_files(tls),
            signing=Signing(manifest_key),
            opening=opening,
            encoding=encoding or "gap",
        )
    return WeightPublisher(
        named_rows(tensors, names=names),
        opening=opening,
        listen=listen,
        security=security,
        signing=Signing(manifest_key),
        names=names,
        encoding=encoding,
        largest=largest,
        plan=plan,
        metrics=metrics,
    )


@overload
def receive(
    tensors: Tensors,
    upstream: str,
    *,
    token: str,
    tls: Tls | None = ...,
    manifest_key: bytes = ...,
    name: str | None = ...,
    names: Names | None = ...,
    live: bool = ...,
    scrub_s: float = ...,
    shards: None = ...,
) -> WeightReceiver: ...
@overload
def receive(
    tensors: Tensors,
    upstream: str,
    *,
    token: str,
    tls: Tls | None = ...,
    manifest_key: bytes = ...,
    scrub_s: float = ...,
    shards: Shards,
) -> "ShardReceiver": ...
def receive(
    tensors: Tensors,
    upstream: str,
    *,
    token: str,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    name: str | None = None,
    names: Names | None = None,
    live: bool = False,
    scrub_s: float = SCRUB_S,
    shards: Shards | None = None,
) -> "WeightReceiver | ShardReceiver":
    """Follow a publisher: `commit` updates the tensors in place to the newest version.

    Args:
        tensors: name → array or tensor, or a module, with the publisher's names, dtypes and shapes.
            They may hold any values: only tiles that differ are fetched. Nobody else may write to
            them. With a module or its `state_dict()`, parameters that the engine replaces are
            noticed. Names that wrappers add (`module.`, `_orig_mod.`, ...) are removed.
        upstream: address of `rose.publish`, `rose publish` or `rose relay`.
        token: the publisher's token.
        tls: PEM files (certificate, key, authority), required if `upstream` is on another machine.
        manifest_key: the publisher's signing key; versions with another signature are refused.
        name: unique name of this receiver; None: a random name.
        names: own name → published name, as a mapping or a function; see `named_rows`.
        live: whether the engine computes with the tensors before the first `commit`. False: until
            then a background thread writes the first version straight into them, which takes no
            further memory. True: the first version is held in memory until `commit`.
        scrub_s: time in seconds in which a background thread reads all tensors once, and compares
            them with the version's digests. Tensors that somebody else has changed are repaired by
            the next `commit`. 0: no background scrub.
        shards: rank of this process, if each rank of the engine holds a part of the tensors. All
            ranks of an engine commit a version together or not at all. None: the tensors are whole.

    Raises:
        InvalidArgument: the tensors differ from the publisher's, or cannot be written in place.
        Unavailable: `upstream` does not answer, or has no weights yet.
    """
    quiet_grpc()
    _check_types(name=(name, str), shards=(shards, Shards))
    if name is not None and (len(name) > _NAME_MAX or not name.isprintable()):
        raise InvalidArgument(f"name must be printable text of at most {_NAME_MAX} characters")
    if not 0 <= scrub_s < math.inf:
        raise InvalidArgument(f"scrub_s {scrub_s}: choose a finite number of seconds, 0 for none")
    if shards is not None:
        if names is not None:
            raise InvalidArgument("shards= excludes names=")
        return _rank_receiver(
            tensors,
            upstream,
            shards,
            token=token,
            tls=_files(tls),
            signing=Signing(manifest_key),
            scrub_s=scrub_s,
        )
    # Imported here: the module needs the extra `wire`, and gRPC reads its log level at import.
    from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415

    given = tensors_by_name(tensors)
    places = Places(given)
    own = named_rows(given, names=names, is_written=True)
    with ExitStack() as undo:
        source = RemoteSource(upstream, token, tls=_files(tls))
        undo.callback(source.close)
        hello = source.hello()
        if not hello.layout:
            raise Unavailable(f"{upstream} has no weights yet: retry once they are published")
        theirs = [
            NamedRow(StoredTensor(one.name, one.dtype, one.shape), one.aliases, None, None)
            for one in hello.tensors
        ]
        rows = matched(own, theirs, what=upstream)
        tiling = plain_tiling(one.stored for one in theirs)
        if tiling.tiles.layout != hello.layout:
            raise InvalidArgument(
                f"{upstream} divides its tensors by a plan: pass shards=, or use "
                f"`rose receive --plan`"
            )
        made = WeightReceiver(
            placed_views(tiling, rows),
            Subscription(tiling.tiles),
            source,
            name=name or f"rose-{secrets.token_hex(8)}",
            signing=Signing(manifest_key),
            place=lambda tile: tiling.place(tile).tensor,
            check=places.check,
            scrub_s=scrub_s,
            lands=not live,
        )
        places.watch()
        made.closes(undo.pop_all())
    return made


def _rank_publisher(
    tensors: Tensors, shards: Shards, *, token: str | None, opening: Version, **options: Any
) -> "LeadPublisher | RankPublisher":
    """Publish as a rank; return when all ranks of the trainer take part."""
    quiet_grpc()
    # Imported here: they import torch, and need the extra `wire`.
    from rose.engines.shards.ranks import TrainerRank  # noqa: PLC0415
    from rose.transfer.sharded.publishing import LeadPublisher, RankPublisher  # noqa: PLC0415

    read = partial(TrainerRank, shards=shards)
    if shards.rank == 0:
        return LeadPublisher(read, tensors, shards, token=token, opening=opening, **options)
    del options["signing"]  # rank 0 signs
    return RankPublisher(read, tensors, shards, token=token, **options)


def _rank_receiver(
    tensors: Tensors, upstream: str, shards: Shards, **options: Any
) -> "ShardReceiver":
    """Receive as a rank; return when all ranks of the engine take part."""
    # Imported here: they import torch, and need the extra `wire`.
    from rose.engines.shards.ranks import EngineRank  # noqa: PLC0415
    from rose.transfer.sharded.receiving import ShardReceiver  # noqa: PLC0415

    return ShardReceiver(
        lambda specs: EngineRank(tensors, shards, specs), upstream, shards, **options
    )


def _check_types(**given: tuple[object, type]) -> None:
    """Check optional arguments.

    Raises:
        InvalidArgument: an argument has another type; the message names it.
    """
    for name, (value, kind) in given.items():
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidArgument(
                f"{name} must be of type {kind.__name__}, got a {type(value).__name__}"
            )


def _files(tls: Tls | None) -> TlsFiles | None:
    if tls is None:
        return None
    given: object = tls
    if isinstance(given, str) or len(tls) != 3:
        raise InvalidArgument("tls must be three paths of PEM files: certificate, key, authority")
    return TlsFiles(*map(Path, tls))
