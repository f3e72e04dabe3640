"""`publish_shards` and `receive_shards`: one call on each rank of a trainer or an engine."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from rose.config import quiet_grpc
from rose.engines.shards.ranks import EngineRank, TrainerRank, Weights
from rose.transfer.manifest import Version
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.sharded.shards import Shards
from rose.transfer.signing import Signing

if TYPE_CHECKING:  # they need the extra `wire`
    from rose.transfer.sharded.publishing import LeadPublisher, RankPublisher
    from rose.transfer.sharded.receiving import ShardReceiver
    from rose.transfer.wire.security import TlsFiles

Tls: TypeAlias = tuple[str | Path, str | Path, str | Path]

# Longest wait for other ranks to start, and for other ranks at the barrier, in seconds.
WITHIN_S: Final = 600.0
BARRIER_S: Final = 30.0
# Time in which the background reads all tensors once, in seconds.
SCRUB_S: Final = 60.0


def publish_shards(
    weights: Weights,
    shards: Shards,
    *,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    opening: Version | None = None,
    encoding: Encoding = "gap",
    threads: int = 1,
    within_s: float = WITHIN_S,
) -> "LeadPublisher | RankPublisher":
    """Publish a sharded model; every rank of the trainer calls it with the same arguments.

    Returns when all ranks take part. `update` of the result must be called on all ranks in step.

    Args:
        weights: a model under FSDP2, HSDP or tensor parallelism, or its tensors by name. DTensors
            are published by the ranks that hold them; plain tensors must be equal on all ranks.
        shards: this rank.
        listen: host and port of rank 0, where the other ranks and all engines find it.
        token: 64 hexadecimal digits, the same on all ranks and engines. None is possible only for
            a trainer of one rank, which makes a random token.
        tls: PEM files (certificate, key, authority), required between machines.
        manifest_key: signing key of versions; b"": no signatures.
        opening: name of the first version; None: the first of a new run.
        encoding: "strat" sends fewer bytes than "gap", and takes longer.
        threads: threads that pack on this rank.
        within_s: longest wait for the other ranks, in seconds.

    Raises:
        InvalidArgument: the ranks have different tensors; the message names a rank and a tensor.
        DeadlineExceeded: a rank did not start in time; the message names it.
        Unavailable: the port is taken, or a rank ended meanwhile.
    """
    quiet_grpc()
    from rose.transfer.sharded.publishing import LeadPublisher, RankPublisher  # noqa: PLC0415

    read = partial(TrainerRank, shards=shards)
    if shards.rank == 0:
        return LeadPublisher(
            read, weights, shards, listen=listen, token=token, tls=_files(tls),
            signing=Signing(manifest_key), opening=opening, encoding=encoding, threads=threads,
            within_s=within_s,
        )  # fmt: skip
    return RankPublisher(
        read, weights, shards, listen=listen, token=token, tls=_files(tls), encoding=encoding,
        threads=threads, within_s=within_s,
    )  # fmt: skip


def receive_shards(
    weights: Weights,
    upstream: str,
    shards: Shards,
    *,
    token: str,
    tls: Tls | None = None,
    manifest_key: bytes = b"",
    barrier_s: float = BARRIER_S,
    within_s: float = WITHIN_S,
    scrub_s: float = SCRUB_S,
) -> "ShardReceiver":
    """Follow a sharded trainer; every rank of the engine calls it. Returns when all take part.

    Args:
        weights: the rank's model or tensors by name. With `shards.load_weights` it must be the
            model whose parameters that loader writes; otherwise tensors have the trainer's names,
            and are DTensors or whole.
        upstream: address of rank 0 of the trainer.
        shards: this rank, and the name of its engine.
        token: token of the publisher.
        tls: PEM files (certificate, key, authority), required between machines.
        manifest_key: signing key of the publisher; versions with another signature are refused.
        barrier_s: time for all ranks to come to `commit`, and then to commit, in seconds.
        within_s: longest wait for the publisher and for the other ranks, in seconds.
        scrub_s: time in seconds in which a background thread reads all tensors once, and compares
            them with the version's digests. Tensors that somebody else has changed are repaired by
            the next `commit`.

    Raises:
        InvalidArgument: the tensors do not fit the trainer's; the message names one.
        DeadlineExceeded: the publisher or another rank did not start in time.
    """
    quiet_grpc()
    from rose.transfer.sharded.receiving import ShardReceiver  # noqa: PLC0415

    return ShardReceiver(
        lambda specs: EngineRank(weights, shards, specs),
        upstream, shards, token=token, tls=_files(tls), signing=Signing(manifest_key),
        barrier_s=barrier_s, within_s=within_s, scrub_s=scrub_s,
    )  # fmt: skip


def _files(tls: Tls | None) -> "TlsFiles | None":
    from rose.transfer.wire.security import TlsFiles  # noqa: PLC0415  (needs the extra `wire`)

    return None if tls is None else TlsFiles(*map(Path, tls))
