// The append-only record of rose's lending decisions, in the order in which they were made.
//
// A file is a header, then records of 128 bytes each, little-endian and contiguous.
//
//   header   offset  type     field
//                 0  char[8]  magic "ROSELOG1"
//                 8  u32      version, kVersion
//                12  u32      record_bytes, 128
//                16  f64      ttft_ms, tpot_ms          the user's targets
//                32  f64      epsilon                   share of steps above their bound
//                40  f64      signal_ms                 from a close until the borrower sees it
//                48  f64      blocking_ms               longest delay of serving by a quantum
//                56  i64      heartbeat_ttl_ns
//                64  i64      started_ns                CLOCK_BOOTTIME, as all times below
//                72  u32      max_segments, slabs, partitions, blocks_per_slab
//                88  u32      block_tokens, max_request_tokens, max_batch_tokens of serving;
//                             burst_requests, the fewest that an admission counts
//               104  f64      revoke_ms                longest time of a revocation
//               112  f64      slowdown                 share by which rollouts may increase TPOT
//               120  u32      without, a bit for each Mechanism that is switched off
//               124  u32      crc32 of bytes 0..123
//
//   record   offset  type     field
//                 0  u32      kind
//                 4  u32      zero
//                 8  u64      sequence, 1 for the first record
//                16  i64      time_ns, never less than in the record before
//                24  96 B     payload by kind, zeros after its last field
//               120  u32      zero
//               124  u32      crc32 of bytes 0..123, continued from the crc32 of the record before
//
//   kind             payload, from offset 24
//    1 START         i64 wall_time_ns, wait_budget_ns; f64 park_wait_ms
//    2 ARRIVED       u64 tokens; u32 slot, prefilled
//    3 FINISHED      u32 slot
//    4 QUANTUM       f64 segment_upper_ms, quantum_ms, step_upper_ms, chunk_upper_ms, budget_ms,
//                    wait_ms; i64 deadline_ns, heartbeat_age_ns; u32 segments, outstanding, passed,
//                    close_epoch, pending, mode, committed
//    5 ADMISSION     u64 epoch; f64 horizon_ms, decode_tokens_per_s, prefill_tokens_per_s,
//                    i64 slack_blocks; u32 slabs, block_tokens,
//                    free_serving_blocks, unowned_slabs, revocable_blocks, running_requests,
//                    max_request_tokens, max_batch_tokens, burst_requests, burst_request_tokens,
//                    demand_blocks, to_partition; docs/certificates.md explains them
//    6 MOVE          u64 lease_id, epoch; i32 from, to; u32 slabs, move_kind
//    7 REVOKE_BEGUN  i64 deadline_ns; u32 slabs
//    8 STEP          f64 predicted_ms, upper_ms, actual_ms, decode_sequences, context_tokens,
//                    prefill_tokens, blocked_ms, lent_ms; i64 began_ns
//    9 GAVE_BACK     char[96] reason, UTF-8, padded with zeros
//   10 END           u32[14] number of records of each kind modulo 2^32, in this order, END
//   included 11 TOKENS        u32 first_slot, count; u8[88] bitmap: bit i of byte j is slot
//                    first_slot + 8 j + i, which received a token
//   12 FORCED        u32 passed, close_epoch        the watchdog lets one segment through
//   13 WAITED        i64 waited_ns, certified_ns, left_ns; u32 borrower
//                    serving has waited for a running segment
//   14 EVICTED       i64 spent_ns; u32 borrower, pid; char[80] reason, UTF-8, padded with zeros
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/owned_thread.h"
#include "base/status.h"
#include "slo/wait_budget.h"

namespace rose::slo {

enum class RecordKind : std::uint32_t {
  kStart = 1,
  kArrived,
  kFinished,
  kQuantum,
  kAdmission,
  kMove,
  kRevokeBegun,
  kStep,
  kGaveBack,
  kEnd,
  kTokens,
  kForced,
  kWaited,
  kEvicted,
};
inline constexpr std::size_t kKinds = 15;  // 0 is not a kind

// When a quantum is granted. `idle`: no request is live. `slack`: no request waits for its first
// token, and serving lets rollouts run between two of its steps. `trial`: as idle, but for one
// segment that is too long for the targets, to measure it again; the wait budget pays for it.
enum class HarvestMode : std::uint32_t { kIdle = 0, kSlack = 1, kTrial = 2 };
inline constexpr std::size_t kHarvestModes = 3;

// Mechanisms that an ablation can switch off; the value is the bit in `without`.
enum class Mechanism : std::uint32_t {
  kGate = 0,          // gates within a step
  kCredit = 1,        // a limit on the segments that an open gate lets through
  kEarlyClose = 2,    // the gate closes at an arrival, not only at serving's next step
  kHypothetical = 3,  // certificates count a request that may arrive next
  kMargin = 4,        // certificates use upper bounds, not predictions
};

struct LogHeader {
  double ttft_ms{0};
  double tpot_ms{0};
  double epsilon{0};
  double signal_ms{0};
  double blocking_ms{0};
  std::int64_t heartbeat_ttl_ns{0};
  std::int64_t started_ns{0};  // filled by create()
  std::uint32_t max_segments{0};
  std::uint32_t slabs{0};
  std::uint32_t partitions{0};
  std::uint32_t blocks_per_slab{0};
  // Terms that every admission of this log uses.
  std::uint32_t block_tokens{0};
  std::uint32_t max_request_tokens{0};
  std::uint32_t max_batch_tokens{0};
  std::uint32_t burst_requests{0};
  double revoke_ms{0};
  // Rollouts may delay the tokens of a running request by this share of the time of its steps. With
  // 0, rollouts run only while no request is live; with infinity, delays may reach the targets.
  double slowdown{0};
  std::uint32_t without{0};
  // The START record has the next two, because the header is full.
  Nanoseconds wait_budget_ns{1'000'000'000};  // of WaitBudget
  double park_wait_ms{1000};                  // longest single wait for a segment

  bool may(HarvestMode mode) const noexcept { return mode != HarvestMode::kSlack || slowdown > 0; }
  bool has(Mechanism mechanism) const noexcept {
    return (without & (1U << static_cast<std::uint32_t>(mechanism))) == 0;
  }
};

struct StartRecord {
  static constexpr RecordKind kKind = RecordKind::kStart;
  std::int64_t wall_time_ns;
  std::int64_t wait_budget_ns;
  double park_wait_ms;
};

struct ArrivedRecord {
  static constexpr RecordKind kKind = RecordKind::kArrived;
  std::uint64_t tokens;
  std::uint32_t slot;
  std::uint32_t prefilled;
};

struct FinishedRecord {
  static constexpr RecordKind kKind = RecordKind::kFinished;
  std::uint32_t slot;
  std::uint32_t zero;
};

struct TokensRecord {
  static constexpr RecordKind kKind = RecordKind::kTokens;
  static constexpr std::uint32_t kBitmapBytes = 88;
  std::uint32_t first_slot;
  std::uint32_t count;
  std::array<std::uint8_t, kBitmapBytes> bitmap;
};

struct QuantumRecord {
  static constexpr RecordKind kKind = RecordKind::kQuantum;
  double segment_upper_ms;
  double quantum_ms;
  double step_upper_ms;
  double chunk_upper_ms;
  double budget_ms;          // further delay that rollouts may cause serving; 0 in mode idle
  double wait_ms;            // longest wait for a segment of this quantum, however long it runs
  std::int64_t deadline_ns;  // earliest deadline of the running requests; 0 if none runs
  std::int64_t heartbeat_age_ns;
  std::uint32_t segments;
  std::uint32_t outstanding;
  std::uint32_t passed;
  std::uint32_t close_epoch;
  std::uint32_t pending;
  HarvestMode mode;
  std::uint32_t committed;  // 1: the step's batch is fixed, so no arrival can join
  std::uint32_t zero;
};

struct AdmissionRecord {
  static constexpr RecordKind kKind = RecordKind::kAdmission;
  std::uint64_t epoch;  // epoch of the arbiter before the grant
  double horizon_ms;
  double decode_tokens_per_s;
  double prefill_tokens_per_s;
  std::int64_t slack_blocks;
  std::uint32_t slabs;
  std::uint32_t block_tokens;
  std::uint32_t free_serving_blocks;
  std::uint32_t unowned_slabs;
  std::uint32_t revocable_blocks;
  std::uint32_t running_requests;
  std::uint32_t max_request_tokens;
  std::uint32_t max_batch_tokens;
  std::uint32_t burst_requests;
  std::uint32_t burst_request_tokens;
  std::uint32_t demand_blocks;
  std::uint32_t to_partition;
};

// `from` and `to` are partitions, or -1 for the unowned slabs and -2 for quarantine.
struct MoveRecord {
  static constexpr RecordKind kKind = RecordKind::kMove;
  std::uint64_t lease_id;
  std::uint64_t epoch;  // epoch of the arbiter after the move
  std::int32_t from;
  std::int32_t to;
  std::uint32_t slabs;
  std::uint32_t move_kind;
};

struct RevokeBegunRecord {
  static constexpr RecordKind kKind = RecordKind::kRevokeBegun;
  std::int64_t deadline_ns;
  std::uint32_t slabs;
  std::uint32_t zero;
};

struct StepRecord {
  static constexpr RecordKind kKind = RecordKind::kStep;
  double predicted_ms;
  double upper_ms;
  double actual_ms;
  double decode_sequences;
  double context_tokens;
  double prefill_tokens;
  double blocked_ms;      // time that the step waited for a segment that still ran
  double lent_ms;         // time before that, for which serving let rollouts run first
  std::int64_t began_ns;  // start after both waits
};

struct GaveBackRecord {
  static constexpr RecordKind kKind = RecordKind::kGaveBack;
  std::array<char, 96> reason;
};

struct EndRecord {
  static constexpr RecordKind kKind = RecordKind::kEnd;
  std::array<std::uint32_t, kKinds - 1> records;  // number of each kind, this one included
};

struct ForcedRecord {
  static constexpr RecordKind kKind = RecordKind::kForced;
  std::uint32_t passed;  // the segment after this one may start
  std::uint32_t close_epoch;
};

struct WaitedRecord {
  static constexpr RecordKind kKind = RecordKind::kWaited;
  std::int64_t waited_ns;
  std::int64_t certified_ns;  // wait that the newest certificate allowed
  std::int64_t left_ns;       // wait budget left after this wait
  std::uint32_t borrower;     // partition
  std::uint32_t zero;
};

struct EvictedRecord {
  static constexpr RecordKind kKind = RecordKind::kEvicted;
  std::int64_t spent_ns;  // wait budget spent within the last ten minutes
  std::uint32_t borrower;
  std::uint32_t pid;
  std::array<char, 80> reason;
};

// The limit of one wait for a segment, and its parts.
struct WaitTerms {
  Nanoseconds certified_ns{0};  // wait that the newest certificate allows; 0 if none covers it
  Nanoseconds reserved_ns{0};   // part of the wait budget
  Nanoseconds limit_ns{0};      // longest wait: their sum, at most park_wait_ms
};

// 1. Records are in the order of the decisions: a decider holds a Section from before it reads the
//    state until it has appended its record.
// 2. Nothing is granted unless it is recorded: once a record is lost (ring full, disk full), the
//    log is not healthy, every append returns false, and the deciders refuse.
// 3. An append never waits for the disk: a thread of the log writes the ring to the file. With an
//    empty path, nothing is written and records are only counted.
//
// Any thread may append. close() or the destructor joins the thread.
class CertificateLog {
 public:
  static constexpr std::uint32_t kVersion = 7;
  static constexpr std::size_t kRecordBytes = 128;
  static constexpr std::size_t kPayloadBytes = 96;
  static constexpr std::size_t kRingRecords = 8192;

  // Creates or empties the file, which must be regular. After an error nothing is left running.
  static Result<std::unique_ptr<CertificateLog>> create(const std::string& path, LogHeader header,
                                                        std::shared_ptr<const Clock> clock);
  // The same on an open file, which may also be a pipe or a device; without a file records are only
  // counted.
  static Result<std::unique_ptr<CertificateLog>> create(FileDescriptor file, LogHeader header,
                                                        std::shared_ptr<const Clock> clock);
  ~CertificateLog();
  CertificateLog(const CertificateLog&) = delete;
  CertificateLog& operator=(const CertificateLog&) = delete;

  // Holds the decision mutex. All records of a section have one time.
  class Section {
   public:
    explicit Section(CertificateLog& log) noexcept
        : log_{log}, lock_{log.mutex_}, now_ns_{log.tick_locked()} {}
    Nanoseconds now_ns() const noexcept { return now_ns_; }
    // Delay of serving that the STEPs have allowed, minus the delay that rollouts have caused.
    // Meaningless, and unused, if the slowdown is infinite.
    double balance_ms() const noexcept { return log_.balance_ms_; }
    // Sum of the delays that the quanta of mode slack, recorded since the last STEP, may cause to
    // the next step.
    double promised_ms() const noexcept { return log_.promised_ms_; }
    // Unspent part of the wait budget.
    Nanoseconds wait_left_ns() noexcept { return log_.waits_.left_ns(now_ns_); }
    template <typename Payload>
    bool append(const Payload& payload) noexcept {
      static_assert(sizeof(Payload) <= kPayloadBytes);
      if constexpr (std::is_same_v<Payload, StepRecord>) log_.settle_locked(payload);
      if constexpr (std::is_same_v<Payload, QuantumRecord>) log_.promise_locked(payload);
      return log_.append_locked(Payload::kKind, &payload, sizeof payload);
    }

   private:
    CertificateLog& log_;
    std::scoped_lock<std::mutex> lock_;
    Nanoseconds now_ns_;
  };

  // Returns whether the record was appended.
  template <typename Payload>
  bool append(const Payload& payload) noexcept {
    return Section{*this}.append(payload);
  }
  // Appends a MOVE. `from` and `to` are as in MoveRecord.
  bool append_move(int from, int to, std::uint32_t slabs, std::uint64_t lease_id,
                   std::uint64_t epoch, std::uint32_t move_kind) noexcept;
  bool append_gave_back(std::string_view reason) noexcept;
  // Records that the borrower is removed, with its process id and the reason, at most 80 bytes.
  bool append_evicted(std::uint32_t borrower, std::uint32_t pid, std::string_view reason) noexcept;

  // Call begin_wait() before a wait of serving for a segment, and end_wait() after it. The wait may
  // last `limit_ns`; a longer one counts as this long, since the rest is not the segment's fault.
  // Each QUANTUM of mode idle or slack covers one wait, until the next STEP: its segment_upper_ms
  // and signal_ms are certified, the excess is charged to the wait budget. end_wait() appends
  // WAITED and returns the excess.
  WaitTerms begin_wait() noexcept;
  Nanoseconds end_wait(const WaitTerms& terms, Nanoseconds waited_ns,
                       std::uint32_t borrower) noexcept;
  // Sum of all excesses that count now.
  Nanoseconds wait_spent_ns() noexcept;

  // Writes all records appended before the call to the file.
  Status flush() noexcept;
  // Appends END, writes all records and closes the file. Later appends return false. Any thread may
  // call it; a second caller returns when the file is closed. Unavailable in a forked child.
  Status close() noexcept;

  bool is_healthy() const noexcept { return healthy_.load(); }
  std::uint64_t records() const noexcept { return records_.load(); }
  std::uint64_t count(RecordKind kind) const noexcept {
    return counts_[static_cast<std::size_t>(kind)].load();
  }
  const LogHeader& header() const noexcept { return header_; }
  Nanoseconds now_ns() const noexcept { return clock_->now_ns(); }

 private:
  CertificateLog(FileDescriptor file, LogHeader header,
                 std::shared_ptr<const Clock> clock) noexcept;

  void put_header() noexcept;
  Nanoseconds tick_locked() noexcept;
  EndRecord end() const noexcept;
  bool append_locked(RecordKind kind, const void* payload, std::size_t payload_bytes) noexcept;
  bool put_locked(const std::byte* record) noexcept;
  void promise_locked(const QuantumRecord& quantum) noexcept;
  void settle_locked(const StepRecord& step) noexcept;
  void run() noexcept;

  FileDescriptor file_;
  LogHeader header_;
  std::shared_ptr<const Clock> clock_;
  std::unique_ptr<std::byte[]> ring_;  // null without a file

  std::mutex mutex_;          // the decision mutex: guards all members until flush_mutex_
  std::uint64_t put_{0};      // ring slots filled so far
  std::uint64_t written_{0};  // ring slots written to the file so far
  std::uint32_t crc_{0};
  std::int64_t last_time_ns_{0};
  double balance_ms_{0};
  double promised_ms_{0};
  Nanoseconds covered_ns_{0};  // wait that the newest QUANTUM certifies, until it is used
  WaitBudget waits_;
  bool closed_{false};

  std::mutex flush_mutex_;  // admits one writer of the file at a time; taken before mutex_
  Status failure_;          // the first failed write; guarded by flush_mutex_

  std::atomic<bool> healthy_{true};
  std::atomic<std::uint64_t> records_{0};
  std::array<std::atomic<std::uint64_t>, kKinds> counts_{};
  std::atomic<std::uint32_t> stopping_{0};  // futex word on which the thread sleeps
  const Owner owner_;
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::slo
