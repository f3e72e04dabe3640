// A certificate log in memory, and the records in it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/memfd.h"
#include "check.h"
#include "slo/certificate_log.h"

namespace rose::test {

// A path to the memfd: the test leaves nothing behind.
class MemoryFile {
 public:
  MemoryFile() : fd_{::memfd_create("log", MFD_CLOEXEC)} { CHECK(fd_.is_open()); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  std::vector<std::byte> content() const {
    struct stat file{};
    CHECK_EQ(::fstat(fd_.get(), &file), 0);
    std::vector<std::byte> bytes(static_cast<std::size_t>(file.st_size));
    CHECK_EQ(::pread(fd_.get(), bytes.data(), bytes.size(), 0), file.st_size);
    return bytes;
  }

 private:
  FileDescriptor fd_;
};

// One record of a log.
struct LoggedRecord {
  slo::RecordKind kind{};
  std::vector<std::byte> payload;

  template <typename Payload>
  Payload as() const {
    CHECK_EQ(kind, Payload::kKind);
    Payload value{};
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }
};

// Returns the records in a log's file, oldest first.
inline std::vector<LoggedRecord> records_of(const MemoryFile& file) {
  const std::vector<std::byte> bytes = file.content();
  std::vector<LoggedRecord> records;
  constexpr std::size_t kBytes = slo::CertificateLog::kRecordBytes;
  for (std::size_t at = kBytes; at < bytes.size(); at += kBytes) {
    LoggedRecord record;
    std::memcpy(&record.kind, bytes.data() + at, sizeof record.kind);
    const auto payload = bytes.begin() + static_cast<std::ptrdiff_t>(at) + 24;
    record.payload.assign(payload, payload + slo::CertificateLog::kPayloadBytes);
    records.push_back(std::move(record));
  }
  return records;
}

// Flushes the log, then reads its file.
inline std::vector<LoggedRecord> records_of(slo::CertificateLog& log, const MemoryFile& file) {
  CHECK(log.flush().ok());
  return records_of(file);
}

}  // namespace rose::test
