#include "slo/certificate_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/crc32.h"
#include "base/futex.h"

namespace rose::slo {

static_assert(std::endian::native == std::endian::little,
              "records are written in the byte order of the machine");

namespace {

// Interval of writes to the file: short, so that a killed process loses little, but long enough to
// cost nothing.
constexpr Nanoseconds kFlushEveryNs = 50'000'000;
constexpr std::size_t kCrcAt = CertificateLog::kRecordBytes - sizeof(std::uint32_t);

template <typename T>
void put_at(std::byte* record, std::size_t offset, const T& value) noexcept {
  std::memcpy(record + offset, &value, sizeof value);
}

template <std::size_t kBytes>
void put_text(std::array<char, kBytes>& to, std::string_view text) noexcept {
  text = text.substr(0, kBytes);
  std::copy(text.begin(), text.end(), to.begin());
}

Nanoseconds ns_of(double ms) noexcept { return static_cast<Nanoseconds>(ms * 1e6); }

Nanoseconds wall_time_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<Nanoseconds>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Status foreign() noexcept {
  return Status::unavailable(
      "the certificate log belongs to the process that opened it, not to a forked child");
}

Status write_all(int fd, const std::byte* bytes, std::size_t count) noexcept {
  while (count > 0) {
    const ssize_t wrote = ::write(fd, bytes, count);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return from_errno("writing the certificate log", errno);
    bytes += wrote;
    count -= static_cast<std::size_t>(wrote);
  }
  return {};
}

// Opens and empties the file of a log. Does not wait for the reader of a pipe.
Result<FileDescriptor> open_empty(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return Status::invalid_argument("the path of a certificate log must not have a zero byte");
  }
  FileDescriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644)};
  // ENXIO: a pipe without a reader, or a socket.
  if (!file.is_open() && errno != ENXIO) return from_errno(("opening " + path).c_str(), errno);
  struct stat there{};
  if (!file.is_open() || ::fstat(file.get(), &there) != 0 || !S_ISREG(there.st_mode)) {
    return Status::invalid_argument("a certificate log must be a regular file, " + path +
                                    " is another kind of file");
  }
  if (::ftruncate(file.get(), 0) != 0) return from_errno(("emptying " + path).c_str(), errno);
  return file;
}

}  // namespace

CertificateLog::CertificateLog(FileDescriptor file, LogHeader header,
                               std::shared_ptr<const Clock> clock) noexcept
    : file_{std::move(file)},
      header_{header},
      clock_{std::move(clock)},
      waits_{header.wait_budget_ns} {}

Result<std::unique_ptr<CertificateLog>> CertificateLog::create(const std::string& path,
                                                               LogHeader header,
                                                               std::shared_ptr<const Clock> clock) {
  if (path.empty()) return create(FileDescriptor{}, header, std::move(clock));
  Result<FileDescriptor> file = open_empty(path);
  if (!file.ok()) return file.status();
  return create(file.take(), header, std::move(clock));
}

Result<std::unique_ptr<CertificateLog>> CertificateLog::create(FileDescriptor file,
                                                               LogHeader header,
                                                               std::shared_ptr<const Clock> clock) {
  header.started_ns = clock->now_ns();
  std::unique_ptr<CertificateLog> log{
      new CertificateLog{std::move(file), header, std::move(clock)}};
  if (log->file_.is_open()) {
    log->ring_ = std::make_unique<std::byte[]>(kRingRecords * kRecordBytes);
  }
  log->put_header();
  log->append(StartRecord{.wall_time_ns = wall_time_ns(),
                          .wait_budget_ns = header.wait_budget_ns,
                          .park_wait_ms = header.park_wait_ms});
  if (!log->file_.is_open()) return log;
  ROSE_TRY(log->flush());
  ROSE_TRY(log->thread_.start("the log's thread", [raw = log.get()] { raw->run(); }));
  return log;
}

CertificateLog::~CertificateLog() { (void)close(); }

void CertificateLog::put_header() noexcept {
  std::array<std::byte, kRecordBytes> record{};
  std::memcpy(record.data(), "ROSELOG1", 8);
  put_at(record.data(), 8, kVersion);
  put_at(record.data(), 12, static_cast<std::uint32_t>(kRecordBytes));
  put_at(record.data(), 16, header_.ttft_ms);
  put_at(record.data(), 24, header_.tpot_ms);
  put_at(record.data(), 32, header_.epsilon);
  put_at(record.data(), 40, header_.signal_ms);
  put_at(record.data(), 48, header_.blocking_ms);
  put_at(record.data(), 56, header_.heartbeat_ttl_ns);
  put_at(record.data(), 64, header_.started_ns);
  put_at(record.data(), 72, header_.max_segments);
  put_at(record.data(), 76, header_.slabs);
  put_at(record.data(), 80, header_.partitions);
  put_at(record.data(), 84, header_.blocks_per_slab);
  put_at(record.data(), 88, header_.block_tokens);
  put_at(record.data(), 92, header_.max_request_tokens);
  put_at(record.data(), 96, header_.max_batch_tokens);
  put_at(record.data(), 100, header_.burst_requests);
  put_at(record.data(), 104, header_.revoke_ms);
  put_at(record.data(), 112, header_.slowdown);
  put_at(record.data(), 120, header_.without);
  const std::scoped_lock lock{mutex_};
  last_time_ns_ = header_.started_ns;
  crc_ = crc32(record.data(), kCrcAt, 0);
  put_at(record.data(), kCrcAt, crc_);
  put_locked(record.data());
}

Nanoseconds CertificateLog::tick_locked() noexcept {
  last_time_ns_ = std::max(last_time_ns_, clock_->now_ns());
  return last_time_ns_;
}

EndRecord CertificateLog::end() const noexcept {
  EndRecord out{};
  for (std::size_t kind = 1; kind < kKinds; ++kind) {
    out.records[kind - 1] = static_cast<std::uint32_t>(counts_[kind].load());
  }
  ++out.records[static_cast<std::size_t>(RecordKind::kEnd) - 1];
  return out;
}

bool CertificateLog::append_locked(RecordKind kind, const void* payload,
                                   std::size_t payload_bytes) noexcept {
  if (closed_ || !is_healthy()) return false;
  const std::uint64_t sequence = records_.load() + 1;
  std::array<std::byte, kRecordBytes> record{};
  put_at(record.data(), 0, kind);
  put_at(record.data(), 8, sequence);
  put_at(record.data(), 16, last_time_ns_);
  std::memcpy(record.data() + 24, payload, payload_bytes);
  const std::uint32_t crc = crc32(record.data(), kCrcAt, crc_);
  put_at(record.data(), kCrcAt, crc);
  if (!put_locked(record.data())) return false;
  crc_ = crc;
  records_.store(sequence);
  counts_[static_cast<std::size_t>(kind)].fetch_add(1);
  return true;
}

bool CertificateLog::put_locked(const std::byte* record) noexcept {
  if (ring_ == nullptr) return true;
  if (put_ - written_ == kRingRecords) {
    healthy_.store(false);
    return false;
  }
  std::memcpy(ring_.get() + (put_ % kRingRecords) * kRecordBytes, record, kRecordBytes);
  ++put_;
  // Wakes the thread early after a burst. This happens once per half ring, so it costs nothing.
  if (put_ - written_ == kRingRecords / 2) futex_wake_all(stopping_);
  return true;
}

void CertificateLog::promise_locked(const QuantumRecord& quantum) noexcept {
  if (quantum.mode == HarvestMode::kSlack) promised_ms_ += quantum.quantum_ms + header_.signal_ms;
  covered_ns_ =
      quantum.mode == HarvestMode::kTrial ? 0 : ns_of(quantum.segment_upper_ms + header_.signal_ms);
}

// A step of serving adds the slowdown's share of the step's own time to the balance, and subtracts
// the waits before the step. If serving lent time to rollouts before the step, the step's own time
// is at most the predicted one, and the rest of the actual time is subtracted, too.
void CertificateLog::settle_locked(const StepRecord& step) noexcept {
  const double own_ms =
      step.lent_ms > 0 ? std::min(step.actual_ms, step.predicted_ms) : step.actual_ms;
  const double waited_ms = step.lent_ms + step.blocked_ms;
  balance_ms_ += header_.slowdown * own_ms - (waited_ms + step.actual_ms - own_ms);
  promised_ms_ = 0;
  covered_ns_ = 0;
}

WaitTerms CertificateLog::begin_wait() noexcept {
  const Section section{*this};
  WaitTerms terms{.certified_ns = std::exchange(covered_ns_, 0),
                  .reserved_ns = waits_.reserve(section.now_ns())};
  terms.limit_ns = std::min(ns_of(header_.park_wait_ms), terms.certified_ns + terms.reserved_ns);
  return terms;
}

Nanoseconds CertificateLog::end_wait(const WaitTerms& terms, Nanoseconds waited_ns,
                                     std::uint32_t borrower) noexcept {
  Section section{*this};
  waited_ns = std::min(waited_ns, terms.limit_ns);
  const Nanoseconds excess_ns =
      waits_.settle(section.now_ns(), terms.reserved_ns, waited_ns - terms.certified_ns);
  section.append(WaitedRecord{.waited_ns = waited_ns,
                              .certified_ns = terms.certified_ns,
                              .left_ns = section.wait_left_ns(),
                              .borrower = borrower,
                              .zero = 0});
  return excess_ns;
}

Nanoseconds CertificateLog::wait_spent_ns() noexcept {
  const Section section{*this};
  return waits_.spent_ns(section.now_ns());
}

bool CertificateLog::append_move(int from, int to, std::uint32_t slabs, std::uint64_t lease_id,
                                 std::uint64_t epoch, std::uint32_t move_kind) noexcept {
  return append(MoveRecord{.lease_id = lease_id,
                           .epoch = epoch,
                           .from = from,
                           .to = to,
                           .slabs = slabs,
                           .move_kind = move_kind});
}

bool CertificateLog::append_gave_back(std::string_view reason) noexcept {
  GaveBackRecord payload{};
  put_text(payload.reason, reason);
  return append(payload);
}

bool CertificateLog::append_evicted(std::uint32_t borrower, std::uint32_t pid,
                                    std::string_view reason) noexcept {
  Section section{*this};
  EvictedRecord payload{.spent_ns = waits_.spent_ns(section.now_ns()),
                        .borrower = borrower,
                        .pid = pid,
                        .reason = {}};
  put_text(payload.reason, reason);
  return section.append(payload);
}

Status CertificateLog::flush() noexcept {
  if (!owner_.is_here()) return foreign();
  const std::scoped_lock one_writer{flush_mutex_};
  if (!file_.is_open() || !failure_.ok()) return failure_;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  {
    const std::scoped_lock lock{mutex_};
    from = written_;
    to = put_;
  }
  // Appends do not touch the slots [from, to) until written_ advances, so no lock is needed while
  // the disk writes.
  while (from < to) {
    const std::uint64_t slot = from % kRingRecords;
    const std::uint64_t count = std::min(to - from, kRingRecords - slot);
    failure_ = write_all(file_.get(), ring_.get() + slot * kRecordBytes, count * kRecordBytes);
    if (!failure_.ok()) {
      healthy_.store(false);
      return failure_;
    }
    from += count;
    const std::scoped_lock lock{mutex_};
    written_ = from;
  }
  return {};
}

Status CertificateLog::close() noexcept {
  if (!owner_.is_here()) return foreign();  // The parent's threads may hold the mutexes.
  {
    Section section{*this};
    if (!closed_) section.append(end());
    closed_ = true;
  }
  stopping_.store(1);
  futex_wake_all(stopping_);
  thread_.join();
  const Status status = flush();
  const std::scoped_lock one_writer{flush_mutex_};
  file_ = FileDescriptor{};
  if (status.ok() && !is_healthy()) {
    return Status::unavailable(
        "the certificate log lost records, because its disk could not keep up: write the log to a "
        "faster disk");
  }
  return status;
}

void CertificateLog::run() noexcept {
  while (stopping_.load() == 0) {
    // A failed write makes the log unhealthy; this thread has no caller to report to.
    (void)flush();
    futex_wait(stopping_, 0, kFlushEveryNs);
  }
}

}  // namespace rose::slo
