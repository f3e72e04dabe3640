# Contracts and units stand in the headers under csrc/.
import enum
from collections.abc import Sequence
from enum import Enum
from typing import Any, final, overload

import numpy as np
import numpy.typing as npt

from rose.memory.id_arrays import Ids, Ints, Keys

__compiler__: str

@final
class SlabState(enum.Enum):
    UNOWNED = 0
    OWNED = 1
    GRANTED = 2
    REVOKING = 3
    QUIESCED = 4
    RETURNED = 5
    FENCED = 6
    QUARANTINED = 7

@final
class GrantRefusal(enum.Enum):
    STALE_EPOCH = 0
    POOL_EMPTY = 1
    OVER_LIMIT = 2
    FLOOR = 3

@final
class RenewAnswer(enum.Enum):
    RENEWED = 0
    STALE_EPOCH = 1
    REVOKING = 2
    OVER = 3

class Clock:
    def now_ns(self) -> int: ...

class BootClock(Clock):
    def __init__(self) -> None: ...

class ManualClock(Clock):
    def __init__(self) -> None: ...
    def advance(self, by_ns: int) -> None: ...

class MoveObserver: ...

class Grant:
    @property
    def lease_id(self) -> int: ...
    @property
    def lease_epoch(self) -> int: ...
    @property
    def slabs(self) -> list[int]: ...

class RevocationProgress:
    @property
    def wanted(self) -> int: ...
    @property
    def returned(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def fenced(self) -> int: ...

class Candidate:
    @property
    def slab(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def pins(self) -> int: ...

class PartitionSnapshot:
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def reserve_slabs(self) -> int: ...
    @property
    def limit_slabs(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def used_blocks(self) -> int: ...
    @property
    def revocable_now(self) -> int: ...
    @property
    def in_revocation(self) -> int: ...

class Snapshot:
    @property
    def epoch(self) -> int: ...
    @property
    def unowned(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def partitions(self) -> list[PartitionSnapshot]: ...

class SlabRecord:
    @property
    def owner(self) -> int: ...
    @property
    def state(self) -> SlabState: ...
    @property
    def lease_epoch(self) -> int: ...
    @property
    def generation(self) -> int: ...

class LedgerView:
    @staticmethod
    def open(fd: int) -> LedgerView: ...
    def audit(self) -> None: ...
    def epoch(self) -> int: ...
    def records(self) -> list[SlabRecord]: ...

class BlockAllocator:
    def alloc(self, n: int) -> list[int] | None: ...
    def alloc_into(self, out: Ints) -> bool: ...
    def alloc_rows(self, counts: Ids, table: Ints, lengths: Ints) -> bool: ...
    def free(self, ids: Ids) -> None: ...
    def free_rows(self, table: Ints, lengths: Ints, rows: Ids) -> None: ...
    def share(self, ids: Ids) -> None: ...
    def references(self, block: int) -> int: ...
    def set_cache_namespace(self, key: bytes | tuple[str, int]) -> None: ...
    def publish(self, ids: Ids, keys: Keys) -> None: ...
    def lookup(self, keys: Keys) -> list[int]: ...
    def acquire(self, keys: Keys) -> list[int]: ...
    def forget(self, ids: Ids) -> None: ...
    def forget_all(self) -> None: ...
    def plan_evacuation(
        self, slabs: Ids | None = None, limit: int | None = None
    ) -> tuple[list[int], list[int]]: ...
    def finish_evacuation(self, from_ids: Ids, to_ids: Ids) -> list[int]: ...
    def cancel_evacuation(self, from_ids: Ids, to_ids: Ids) -> None: ...
    def reconcile(self) -> None: ...
    def free_checked(self, block: int, *, generation: int) -> None: ...
    def reserve(self, n: int) -> int | None: ...
    def commit(self, ticket: int, n: int) -> list[int] | None: ...
    def cancel(self, ticket: int) -> None: ...
    def pin(self, ids: Ids) -> int: ...
    def pin_slabs(self, slabs: Sequence[int]) -> int: ...
    def unpin(self, pin: int) -> None: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def cached_blocks(self) -> int: ...
    @property
    def used_blocks(self) -> int: ...
    @property
    def capacity_blocks(self) -> int: ...
    def used(self, slab: int) -> int: ...
    def generation(self, slab: int) -> int: ...
    def slab_of(self, block: int) -> int: ...
    def slab_blocks(self, slab: int) -> tuple[int, int]: ...
    def block_offset(self, block: int) -> int: ...

class Arbiter:
    @staticmethod
    def create(
        *,
        slab_bytes: int,
        slab_count: int,
        header_slabs: int,
        clock: Clock | None = None,
        observer: MoveObserver | None = None,
        object_bytes_max: int = 1073741824,
        fail_backend_call: int = 0,
        device: CudaDevice | None = None,
    ) -> Arbiter: ...
    @property
    def slab_bytes(self) -> int: ...
    @property
    def slab_count(self) -> int: ...
    @property
    def header_slabs(self) -> int: ...
    def now_ns(self) -> int: ...
    @property
    def is_on_host(self) -> bool: ...
    @property
    def pool_address(self) -> int: ...
    @property
    def pool_bytes(self) -> int: ...
    def pool_view(self) -> npt.NDArray[np.uint8]: ...
    def share_ledger(self) -> int: ...
    def add_partition(self, name: str, *, reserve_slabs: int, limit_slabs: int) -> int: ...
    def drop_partition(self, partition: int) -> None: ...
    def allocator(
        self,
        partition: int,
        *,
        block_bytes: int,
        origin_bytes: int,
        blocks_per_slab_max: int = 0,
    ) -> BlockAllocator: ...
    def take(self, partition: int, n: int) -> list[int]: ...
    def give_back(self, partition: int, n: int) -> int: ...
    @property
    def epoch(self) -> int: ...
    def grant(
        self, partition: int, n: int, *, ttl_ns: int, expected_epoch: int
    ) -> Grant | GrantRefusal: ...
    def renew(self, lease_id: int, *, lease_epoch: int, ttl_ns: int) -> RenewAnswer: ...
    def expire(self, *, grace_ns: int) -> list[int]: ...
    def candidates(self, partition: int) -> list[Candidate]: ...
    def leaving(self, partition: int) -> list[int]: ...
    def revoke(
        self,
        partition: int,
        n: int,
        *,
        deadline_ns: int,
        taker: int | None = None,
        preferred: Sequence[int] = [],
    ) -> int: ...
    def poll(self, revocation: int) -> RevocationProgress: ...
    def wait(self, revocation: int, *, timeout_ns: int) -> RevocationProgress: ...
    def prove_completion(self, partition: int) -> int: ...
    def snapshot(self) -> Snapshot: ...
    def check_invariants(self) -> None: ...

# Clock, BootClock, ManualClock: memory's fragment.

class Verdict(Enum):
    PASSED = 0
    ABORTED = 1
    TIMED_OUT = 2
    SHUT_DOWN = 3

class CloseReason(Enum):
    NEVER_OPENED = 0
    ARRIVAL = 1
    REVOCATION = 2
    GAVE_BACK = 3
    SHUT_DOWN = 4

class GateStats:
    @property
    def segments(self) -> int: ...
    @property
    def segment_ms_p50(self) -> float: ...
    @property
    def segment_ms_p99(self) -> float: ...
    @property
    def segment_ms_max(self) -> float: ...
    @property
    def caught(self) -> int: ...
    @property
    def pause_ms_p50(self) -> float: ...
    @property
    def pause_ms_p99(self) -> float: ...
    @property
    def pause_ms_max(self) -> float: ...
    @property
    def pauses(self) -> int: ...
    @property
    def aborts(self) -> int: ...
    @property
    def blocked_ms(self) -> float: ...

class HostGate:
    def __init__(self, *, first_segment: int = 0, clock: Clock | None = None) -> None: ...
    @staticmethod
    def attach(fd: int, *, clock: Clock | None = None) -> HostGate: ...
    def fileno(self) -> int: ...
    def begin_step(self) -> None: ...
    def pass_(self, *, timeout_ms: float) -> Verdict: ...
    def settle(self, *, timeout_ms: float) -> Verdict: ...
    def leave(self) -> None: ...
    def end_step(self) -> None: ...
    def close(self, reason: CloseReason) -> None: ...
    def wait_parked(self, *, timeout_ms: float) -> float | None: ...
    def abort_step(self) -> bool: ...
    def open(self, expected_epoch: int) -> bool: ...
    def grant(self, segments_ahead: int) -> None: ...
    def shut_down(self) -> None: ...
    def is_open(self) -> bool: ...
    def is_running(self) -> bool: ...
    def is_in_step(self) -> bool: ...
    @property
    def close_epoch(self) -> int: ...
    @property
    def close_reason(self) -> CloseReason: ...
    @property
    def passed(self) -> int: ...
    @property
    def credit_left(self) -> int: ...
    def stats(self) -> GateStats: ...
    def drain_segments_ms(self) -> list[float]: ...

class Forecast:
    @property
    def predicted_ms(self) -> float: ...
    @property
    def upper_ms(self) -> float: ...

class LatencyModel:
    def __init__(
        self,
        *,
        prior_ms: Sequence[float],
        epsilon: float,
        forgetting: float,
        adaptation: float,
        cold_margin: float,
        window: int,
    ) -> None: ...
    def forecast(
        self, *, decode_sequences: float, context_tokens: float, prefill_tokens: float
    ) -> Forecast: ...
    def observe(
        self,
        actual_ms: float,
        *,
        decode_sequences: float,
        context_tokens: float,
        prefill_tokens: float,
    ) -> Forecast: ...
    @property
    def observations(self) -> int: ...
    @property
    def coverage(self) -> float: ...

class RecordKind(Enum):
    START = 1
    ARRIVED = 2
    FINISHED = 3
    QUANTUM = 4
    ADMISSION = 5
    MOVE = 6
    REVOKE_BEGUN = 7
    STEP = 8
    GAVE_BACK = 9
    END = 10

class CertificateLog:
    def __init__(
        self,
        path: str,
        *,
        ttft_ms: float,
        tpot_ms: float,
        epsilon: float,
        signal_ms: float,
        blocking_ms: float,
        heartbeat_ttl_ms: float,
        max_segments: int,
        slabs: int,
        partitions: int,
        blocks_per_slab: int,
        clock: Clock | None = None,
    ) -> None: ...
    def append_move(
        self,
        *,
        from_partition: int,
        to_partition: int,
        slabs: int,
        lease_id: int,
        epoch: int,
        move_kind: int,
    ) -> bool: ...
    def append_revoke_begun(self, *, lease_id: int, deadline_ns: int, slabs: int) -> bool: ...
    def append_step(
        self,
        forecast: Forecast,
        *,
        actual_ms: float,
        decode_sequences: float,
        context_tokens: float,
        prefill_tokens: float,
    ) -> bool: ...
    def append_gave_back(self, reason: str) -> bool: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def count(self, kind: RecordKind) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def is_healthy(self) -> bool: ...

class AdmissionTerms:
    def __init__(
        self,
        *,
        epoch: int,
        to_partition: int,
        slabs: int,
        blocks_per_slab: int,
        block_tokens: int,
        free_serving_blocks: int,
        unowned_slabs: int,
        revocable_blocks: int,
        horizon_ms: float,
        running_requests: int,
        decode_tokens_per_s: float,
        prefill_tokens_per_s: float,
        max_request_tokens: int,
        max_batch_tokens: int,
        burst_requests: int,
        burst_request_tokens: int,
    ) -> None: ...
    slabs: int
    @property
    def epoch(self) -> int: ...
    @property
    def unowned_slabs(self) -> int: ...

class AdmissionBalance:
    @property
    def growth_blocks(self) -> int: ...
    @property
    def request_blocks(self) -> int: ...
    @property
    def burst_blocks(self) -> int: ...
    @property
    def demand_blocks(self) -> int: ...
    @property
    def supply_blocks(self) -> int: ...
    @property
    def slack_blocks(self) -> int: ...

def admission_balance(terms: AdmissionTerms) -> AdmissionBalance: ...
def largest_grant(terms: AdmissionTerms) -> int: ...
def admission_certificate(
    terms: AdmissionTerms, *, log: CertificateLog | None
) -> AdmissionBalance | None: ...

class QuantumRefusal(Enum):
    NONE = 0
    SERVING_BUSY = 1
    NO_HEARTBEAT = 2
    SLO_AT_RISK = 3
    ENOUGH = 4
    LOG_BROKEN = 5

class ServingState:
    def __init__(self, log: CertificateLog, *, gate: HostGate | None = None) -> None: ...
    def arrived(self, *, tokens: int) -> None: ...
    def finished(self) -> bool: ...
    def beat(self) -> None: ...
    @property
    def pending(self) -> int: ...

class Creditor:
    def __init__(
        self,
        gate: HostGate,
        state: ServingState,
        model: LatencyModel,
        log: CertificateLog,
        *,
        largest_step: Sequence[float],
        largest_chunk: Sequence[float],
        segment_prior_ms: float,
        segment_share: float,
        poll_ms: float,
        retry_ms: float,
        clock: Clock | None = None,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def notify(self) -> None: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def grants(self) -> int: ...
    @property
    def refusals(self) -> int: ...
    @property
    def overtaken(self) -> int: ...
    @property
    def last_refusal(self) -> QuantumRefusal: ...
    def refused(self, why: QuantumRefusal) -> int: ...
    @property
    def segment_upper_ms(self) -> float: ...

class MoveLog(MoveObserver):
    def __init__(self, log: CertificateLog) -> None: ...

# A delta is a `rose.transfer.Delta`, or what has its fields. Weights are arrays of uint8, uint16 or
# uint32 with any strides that are not negative.
def isa_names() -> list[str]: ...
def delta_pack(
    new: npt.NDArray[Any],
    shadow: npt.NDArray[Any],
    *,
    block_elements: int,
    threshold: int = 0,
    ages: npt.NDArray[np.uint8] | None = None,
    age_limit: int = 0,
    base_digest: tuple[int, int] | None = None,
    isa: str | None = None,
    threads: int = 1,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], tuple[int, int], tuple[int, int]]: ...
def delta_measure(
    new: npt.NDArray[Any],
    shadow: npt.NDArray[Any],
    *,
    block_elements: int,
    threshold: int = 0,
    ages: npt.NDArray[np.uint8] | None = None,
    age_limit: int = 0,
    isa: str | None = None,
    threads: int = 1,
) -> int: ...
def delta_check(delta: Any) -> None: ...
def delta_apply(
    weights: npt.NDArray[Any],
    delta: Any,
    *,
    undo: bool = False,
    first_block: int = 0,
    last_block: int | None = None,
) -> None: ...
def delta_verify(
    weights: npt.NDArray[Any],
    delta: Any,
    *,
    base_digest: tuple[int, int],
    digest: tuple[int, int],
    undo: bool = False,
) -> None: ...
def delta_merge(
    first: Any, second: Any
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...

# A class rule: shift, exponent_bits, origin, all_mask, magnitude_bits of each of eight classes.
HISTOGRAM_COLUMNS: int

@overload
def strat_pack(
    weights: npt.NDArray[np.uint8],
    delta: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    is_after: bool = False,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
@overload
def strat_pack(
    weights: npt.NDArray[np.uint16],
    delta: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    is_after: bool = False,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
@overload
def strat_pack(
    weights: npt.NDArray[np.uint32],
    delta: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    is_after: bool = False,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
@overload
def strat_unpack(
    base: npt.NDArray[np.uint8],
    link: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
@overload
def strat_unpack(
    base: npt.NDArray[np.uint16],
    link: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
@overload
def strat_unpack(
    base: npt.NDArray[np.uint32],
    link: Any,
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
def link_pack(
    new: npt.NDArray[Any],
    shadow: npt.NDArray[Any],
    rule: tuple[int, int, int, int, Sequence[int]],
    *,
    block_elements: int,
    threads: int = 1,
    isa: str | None = None,
) -> tuple[
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint32],
    tuple[int, int],
    tuple[int, int],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint32],
]: ...
@overload
def add_to_histogram(
    new: npt.NDArray[np.uint8],
    shadow: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.uint64],
    *,
    shift: int,
    exponent_bits: int,
) -> None: ...
@overload
def add_to_histogram(
    new: npt.NDArray[np.uint16],
    shadow: npt.NDArray[np.uint16],
    rows: npt.NDArray[np.uint64],
    *,
    shift: int,
    exponent_bits: int,
) -> None: ...
@overload
def add_to_histogram(
    new: npt.NDArray[np.uint32],
    shadow: npt.NDArray[np.uint32],
    rows: npt.NDArray[np.uint64],
    *,
    shift: int,
    exponent_bits: int,
) -> None: ...
def topk_threshold(
    new: npt.NDArray[np.uint16],
    shadow: npt.NDArray[np.uint16],
    *,
    budget: int,
    ages: npt.NDArray[np.uint8] | None = None,
    age_limit: int = 0,
    isa: str | None = None,
) -> int: ...
def topk_unpack(
    base: npt.NDArray[Any], delta: Any
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]: ...
def digest(
    bits: npt.NDArray[Any],
    *,
    first_index: int = 0,
    seed: int = 0,
    isa: str | None = None,
    threads: int = 1,
) -> tuple[int, int]: ...

# Weights of one byte; see `rose.transfer.quantise`.
def quantise(
    weights: npt.NDArray[np.uint16],
    *,
    to: str,
    block_rows: int,
    block_cols: int,
    isa: str | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]: ...
def dequantise(
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    *,
    to: str,
    block_rows: int,
    block_cols: int,
) -> npt.NDArray[np.uint16]: ...

class DeviceFacts:
    @property
    def ordinal(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def compute_major(self) -> int: ...
    @property
    def compute_minor(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...
    @property
    def has_virtual_memory(self) -> bool: ...
    @property
    def has_posix_fd_handles(self) -> bool: ...
    @property
    def has_stream_mem_ops_64(self) -> bool: ...
    @property
    def has_wait_value_nor(self) -> bool: ...

class CudaDriver:
    @staticmethod
    def open() -> CudaDriver: ...
    @property
    def version(self) -> int: ...
    def device_count(self) -> int: ...
    def facts(self, ordinal: int) -> DeviceFacts: ...

class CudaDevice:
    @staticmethod
    def open(ordinal: int, *, driver: CudaDriver | None = None) -> CudaDevice: ...
    @property
    def name(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def facts(self) -> DeviceFacts: ...
    @property
    def priority_range(self) -> tuple[int, int]: ...
    def memory_info(self) -> tuple[int, int]: ...

class CudaStream:
    @staticmethod
    def create(device: CudaDevice, *, highest: bool) -> CudaStream: ...
    @property
    def handle(self) -> int: ...
    @property
    def priority(self) -> int: ...
    def is_idle(self) -> bool: ...
    def wait(self, *, timeout_ms: float) -> None: ...

class CudaEvent:
    @staticmethod
    def create(device: CudaDevice, *, has_timing: bool) -> CudaEvent: ...
    def record(self, stream: int) -> None: ...
    def is_done(self) -> bool: ...
    def since_ms(self, earlier: CudaEvent) -> float: ...

class CudaGraph:
    @staticmethod
    def begin_capture(device: CudaDevice, stream: int) -> None: ...
    @staticmethod
    def end_capture(device: CudaDevice, stream: int) -> CudaGraph: ...
    def launch(self, stream: int) -> None: ...

class GreenContext:
    @staticmethod
    def create(device: CudaDevice, *, multiprocessors: int) -> GreenContext: ...
    @property
    def multiprocessors(self) -> int: ...
    def create_stream(self, *, highest: bool) -> CudaStream: ...

def embedded_kernels() -> list[str]: ...

class DeviceCodec:
    @staticmethod
    def create(device: CudaDevice) -> DeviceCodec: ...
    def delta_pack(
        self,
        *,
        bits: int,
        shadow: int,
        width: int,
        count: int,
        block_elements: int,
        arena: int,
        arena_words: int,
        cursor: int,
        entries: int,
        offsets: int,
        stream: int,
        bits_box: Sequence[int] | None = None,
        shadow_box: Sequence[int] | None = None,
        threshold: int = 0,
        ages: int = 0,
        age_limit: int = 255,
        digest: int = 0,
        first_index: int = 0,
        seed: int = 0,
    ) -> None: ...
    def delta_apply(
        self,
        *,
        entries: int,
        offsets: int,
        payload: int,
        payload_words: int,
        weights: int,
        width: int,
        count: int,
        block_elements: int,
        bad_block: int,
        stream: int,
        weights_box: Sequence[int] | None = None,
        first: int = 0,
        undo: bool = False,
    ) -> None: ...
    def topk_unpack(
        self,
        *,
        entries: int,
        offsets: int,
        first_outputs: int,
        payload: int,
        payload_words: int,
        base: int,
        width: int,
        count: int,
        block_elements: int,
        positions: int,
        values: int,
        output_count: int,
        bad_block: int,
        stream: int,
        base_box: Sequence[int] | None = None,
    ) -> None: ...
    def topk_histogram(
        self,
        *,
        bits: int,
        shadow: int,
        count: int,
        histogram: int,
        stream: int,
        bits_box: Sequence[int] | None = None,
        shadow_box: Sequence[int] | None = None,
        ages: int = 0,
        age_limit: int = 255,
    ) -> None: ...
    def topk_threshold(
        self, *, histogram: int, budget: int, threshold: int, stream: int
    ) -> None: ...
    def digest(
        self,
        *,
        bits: int,
        width: int,
        count: int,
        sums: int,
        stream: int,
        bits_box: Sequence[int] | None = None,
        first_index: int = 0,
        seed: int = 0,
    ) -> None: ...
    def strat_pack(
        self,
        *,
        entries: int,
        offsets: int,
        payload: int,
        base: int,
        differences: int,
        width: int,
        count: int,
        block_elements: int,
        rule: Sequence[int],
        arena: int,
        arena_words: int,
        cursor: int,
        link_entries: int,
        link_offsets: int,
        stream: int,
        base_box: Sequence[int] | None = None,
    ) -> None: ...
    def strat_unpack(
        self,
        *,
        entries: int,
        offsets: int,
        payload: int,
        payload_words: int,
        base: int,
        differences: int,
        width: int,
        count: int,
        block_elements: int,
        rule: Sequence[int],
        bad_block: int,
        stream: int,
        base_box: Sequence[int] | None = None,
    ) -> None: ...

class DeviceQuantiser:
    @staticmethod
    def create(device: CudaDevice) -> DeviceQuantiser: ...
    def quantise(
        self,
        *,
        bits: int,
        rows: int,
        cols: int,
        row_stride: int,
        to: str,
        block_rows: int,
        block_cols: int,
        codes: int,
        scales: int,
        stream: int,
    ) -> None: ...

# The gate in a stream of a device. Streams are handles, those of torch included.

class GateKind(Enum):
    HOST = 0
    MEMOP = 1
    KERNEL = 2

class StreamGate:
    @staticmethod
    def create(
        device: CudaDevice,
        gate: HostGate,
        *,
        stream: int,
        kind: GateKind,
        window: int = 2,
        drain_timeout_ms: float = 1000.0,
    ) -> StreamGate: ...
    def begin_step(self) -> None: ...
    def pass_(self, *, timeout_ms: float) -> Verdict: ...
    def settle(self, *, timeout_ms: float) -> Verdict: ...
    def leave(self) -> None: ...
    def end_step(self) -> None: ...
    def insert(self, stream: int) -> None: ...
    def launch(self, graph: CudaGraph, *, timeout_ms: float) -> Verdict: ...
    def is_drained(self) -> bool: ...
    @property
    def kind(self) -> GateKind: ...
    @property
    def enqueued(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def drain_timeouts(self) -> int: ...
    @property
    def overdue(self) -> int: ...

class KindProbe:
    @property
    def is_usable(self) -> bool: ...
    @property
    def is_stuck(self) -> bool: ...
    @property
    def why(self) -> str: ...
    @property
    def wake_us(self) -> float: ...
    @property
    def alias_us(self) -> float: ...

class GateChoice:
    @property
    def kind(self) -> GateKind: ...
    @property
    def why(self) -> str: ...

class GateProbe:
    @property
    def memop(self) -> KindProbe: ...
    @property
    def kernel(self) -> KindProbe: ...
    @property
    def choice(self) -> GateChoice: ...

def probe_gates(
    device: CudaDevice,
    *,
    borrower_stream: int,
    serving_streams: Sequence[int],
    max_connections: int | None,
    in_one_process: bool,
    try_all: bool = False,
) -> GateProbe: ...

# The scheduler: rows are tuples of a code and the fields, see rose/scheduler/core.py.

class SchedulerCore:
    def __init__(
        self,
        *,
        policy: int,
        max_staleness: int,
        batch_trajectories: int,
        worker_lag_max: int,
        recall_grace_ms: float,
        retry_ms: float,
        attempts_max: int,
        stall_ms: float,
        wait_max_ms: float,
        tail_age_ratio: float,
        urgent_time_weight: float,
        urgent_risk_weight: float,
        staleness_s_per_version: float,
        leave_home_margin_s: float,
        hazard_per_s: float,
        requeue_ms: float,
        turn_tokens_prior: float,
        turn_window: int,
    ) -> None: ...
    def step(self, rows: list[tuple[float, ...]], now_ns: int) -> list[tuple[int, ...]]: ...
    def stats(self) -> dict[str, Any]: ...
