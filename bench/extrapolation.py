"""Computes an update of a model that no machine here holds, from measured parts, without a clock.

As implemented, a version is packed before any of it is sent, and frames are checked when they
arrive. The serving cluster's own network is assumed to keep up with the link between the clusters.
"""

from dataclasses import dataclass

from bench.rows import Term

_GB = 1e9
_BYTES = 2  # per element
_SECTOR_ELEMENTS = 16  # memory is read and written in units of 32 bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """Measured parts of one run, on one core unless stated otherwise.

    Args:
        pack_gb_s: GB of weights packed per second, digest included.
        bytes_per_change: bytes on the wire per change, all headers of the frames included.
        wire_efficiency: rate of frames divided by the link's rate.
        stage_gb_s: GB of frames per second: checksum, reading, and the check before apply.
        commit_gb_s: GB of weights per second: apply, reading for the digest, and bookkeeping.
        commit_over_bare: time of a commit divided by that of a bare change and digest.
    """

    pack_gb_s: float
    bytes_per_change: float
    wire_efficiency: float
    stage_gb_s: float
    commit_gb_s: float
    commit_over_bare: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """Assumptions.

    Args:
        elements: elements of the model.
        density: share of elements that change.
        link_bits_per_s: rate between the clusters; each change crosses it once.
        trainer_ranks: ranks that pack their parts.
        trainer_cores: cores per rank that pack.
        receiver_ranks: ranks of one replica with one part each; replicas work in parallel.
        staging_threads: threads per rank that check frames: `Receiver(threads=...)`.
        receiver_cores: cores per rank that commit; a commit is one thread.
        device_gb_s: bandwidth of a receiver's device memory with a plain kernel.
    """

    elements: float
    density: float
    link_bits_per_s: float
    trainer_ranks: int
    trainer_cores: int
    receiver_ranks: int
    staging_threads: int
    receiver_cores: int
    device_gb_s: float

    def terms(self) -> list[Term]:
        """Return the assumptions as terms of a row."""
        return [
            Term("assumed: elements", self.elements, "elements"),
            Term("assumed: density", self.density, "share"),
            Term("assumed: link", self.link_bits_per_s / 1e9, "Gb/s"),
            Term("assumed: trainer ranks", self.trainer_ranks, "ranks"),
            Term("assumed: cores of a trainer rank", self.trainer_cores, "cores"),
            Term("assumed: ranks of a replica", self.receiver_ranks, "ranks"),
            Term("assumed: threads of a receiver rank that stage", self.staging_threads, "threads"),
            Term("assumed: cores of a receiver rank that commit", self.receiver_cores, "cores"),
        ]


# 120 B parameters at 3 %, as in the closest peer's figure; 128 GPUs train, and eight serve.
LARGE = Deployment(
    elements=120e9,
    density=0.03,
    link_bits_per_s=25e9,
    trainer_ranks=128,
    trainer_cores=1,
    receiver_ranks=8,
    staging_threads=2,
    receiver_cores=1,
    device_gb_s=3500.0,  # three quarters of the value in an H200's data sheet
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, and the terms that it was computed from."""

    value: float
    terms: tuple[Term, ...]


def published_to_staged_s(parts: Parts, at: Deployment) -> Figure:
    """Return the seconds from new weights until every rank has staged the version."""
    weights_gb = _BYTES * at.elements / _GB
    wire_gb = at.elements * at.density * parts.bytes_per_change / _GB
    cores = at.trainer_ranks * at.trainer_cores
    pack_s = weights_gb / (cores * parts.pack_gb_s)
    wire_s = wire_gb * 8e9 / (at.link_bits_per_s * parts.wire_efficiency)
    stage_s = wire_gb / (at.receiver_ranks * at.staging_threads * parts.stage_gb_s)
    return Figure(
        pack_s + max(wire_s, stage_s),
        (
            *at.terms(),
            Term("measured: packing, a core", parts.pack_gb_s, "GB/s of weights"),
            Term("measured: bytes of a change", parts.bytes_per_change, "B"),
            Term("measured: share of a link", parts.wire_efficiency, "share"),
            Term("measured: staging, a thread", parts.stage_gb_s, "GB/s of frames"),
            Term("frames", wire_gb, "GB"),
            Term("pack: weights / (trainer ranks x cores x packing)", pack_s, "s"),
            Term("wire: frames / (link x share)", wire_s, "s"),
            Term("stage: frames / (receiver ranks x threads x staging)", stage_s, "s"),
            Term("wire and stage at the same time: the longer one", max(wire_s, stage_s), "s"),
        ),
    )


def pause_on_devices_ms(parts: Parts, at: Deployment) -> Figure:
    """Return the milliseconds of a commit if a rank's weights are in device memory.

    A bare commit reads each byte for the digest, and reads and writes each sector that changes.
    """
    rank_gb = _BYTES * at.elements / at.receiver_ranks / _GB
    touched = 1 - (1 - at.density) ** _SECTOR_ELEMENTS
    moved_gb = rank_gb * (1 + 2 * touched)
    bare_ms = moved_gb / at.device_gb_s * 1e3
    return Figure(
        bare_ms * parts.commit_over_bare,
        (
            *at.terms(),
            Term("assumed: memory of a device", at.device_gb_s, "GB/s"),
            Term("measured, on a CPU: a commit over a bare one", parts.commit_over_bare, "ratio"),
            Term("weights of a rank", rank_gb, "GB"),
            Term("sectors touched: 1 - (1 - density)^16", touched, "share"),
            Term("moved: weights x (1 + 2 x touched)", moved_gb, "GB"),
            Term("bare: moved / memory", bare_ms, "ms"),
        ),
    )


def pause_on_cpus_ms(parts: Parts, at: Deployment) -> Figure:
    """Return the milliseconds of a commit if a rank's weights are in host memory."""
    rank_gb = _BYTES * at.elements / at.receiver_ranks / _GB
    pause_ms = rank_gb / (at.receiver_cores * parts.commit_gb_s) * 1e3
    return Figure(
        pause_ms,
        (
            *at.terms(),
            Term("measured: a commit, a core", parts.commit_gb_s, "GB/s of weights"),
            Term("weights of a rank", rank_gb, "GB"),
            Term("pause: weights / (cores x commit)", pause_ms, "ms"),
        ),
    )
