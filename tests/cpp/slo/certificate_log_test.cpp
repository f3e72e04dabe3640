#include "slo/certificate_log.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/crc32.h"
#include "check.h"
#include "log_file.h"
#include "together.h"

using namespace rose;
using namespace rose::slo;
using rose::test::MemoryFile;

namespace {

std::unique_ptr<CertificateLog> make_log(const std::string& path) {
  auto log = CertificateLog::create(path, {.ttft_ms = 500, .max_segments = 8, .slabs = 4},
                                    std::make_shared<BootClock>());
  CHECK(log.ok());
  return log.take();
}

template <typename T>
T at(const std::vector<std::byte>& bytes, std::size_t record, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + record * CertificateLog::kRecordBytes + offset, sizeof value);
  return value;
}

}  // namespace

TEST(the_checksum_is_that_of_zlib) {
  const char* text = "123456789";
  const auto* bytes = reinterpret_cast<const std::byte*>(text);
  CHECK_EQ(crc32(bytes, 9, 0), 0xCBF43926U);
  CHECK_EQ(crc32(bytes + 4, 5, crc32(bytes, 4, 0)), 0xCBF43926U);
}

TEST(the_checksum_is_the_same_however_many_bytes_are_added_at_once) {
  std::vector<std::byte> bytes(67);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 7);
  std::uint32_t one_by_one = 0;
  for (std::size_t count = 1; count <= bytes.size(); ++count) {
    one_by_one = crc32(bytes.data() + count - 1, 1, one_by_one);
    CHECK_EQ(crc32(bytes.data(), count, 0), one_by_one);
  }
}

TEST(records_lie_where_the_table_says) {
  const MemoryFile file;
  const auto log = make_log(file.path());
  CHECK(log->append(ArrivedRecord{.tokens = 77, .slot = 0, .prefilled = 0}));
  CHECK(log->append_move(-1, 1, 3, 9, 12, 2));
  CHECK(log->append_gave_back(std::string(200, 'x')));
  CHECK(log->close().ok());
  const auto bytes = file.content();
  CHECK_EQ(bytes.size(), 6 * CertificateLog::kRecordBytes);
  CHECK_EQ(std::memcmp(bytes.data(), "ROSELOG1", 8), 0);
  CHECK_EQ(at<double>(bytes, 0, 16), 500.0);
  CHECK_EQ(at<std::uint32_t>(bytes, 0, 72), 8);
  CHECK_EQ(at<std::uint32_t>(bytes, 1, 0), 1);
  CHECK_EQ(at<std::uint64_t>(bytes, 2, 8), 2);
  CHECK_EQ(at<std::uint64_t>(bytes, 2, 24), 77);
  CHECK_EQ(at<std::uint64_t>(bytes, 3, 24), 9);
  CHECK_EQ(at<std::uint64_t>(bytes, 3, 32), 12);
  CHECK_EQ(at<std::int32_t>(bytes, 3, 40), -1);
  CHECK_EQ(at<std::int32_t>(bytes, 3, 44), 1);
  CHECK_EQ(at<std::uint32_t>(bytes, 3, 48), 3);
  CHECK_EQ(at<std::uint32_t>(bytes, 4, 120), 0);
  // END counts START, ARRIVED, MOVE, GAVE_BACK and itself.
  for (std::size_t kind = 1; kind <= 14; ++kind) {
    const bool is_there = kind == 1 || kind == 2 || kind == 6 || kind == 9 || kind == 10;
    CHECK_EQ(at<std::uint32_t>(bytes, 5, 20 + 4 * kind), is_there ? 1 : 0);
  }
  std::uint32_t chain = 0;
  for (std::size_t record = 0; record < 6; ++record) {
    chain = crc32(bytes.data() + record * CertificateLog::kRecordBytes, 124, chain);
    CHECK_EQ(at<std::uint32_t>(bytes, record, 124), chain);
  }
}

TEST(appends_from_many_threads_and_flushes_lose_nothing) {
  const MemoryFile file;
  const auto log = make_log(file.path());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i)
        CHECK(log->append(ArrivedRecord{.tokens = 1, .slot = 0, .prefilled = 0}));
    });
  }
  for (int i = 0; i < 50; ++i) CHECK(log->flush().ok());
  for (auto& thread : threads) thread.join();
  CHECK(log->close().ok());
  CHECK_EQ(log->count(RecordKind::kArrived), 3000);
  const auto bytes = file.content();
  CHECK_EQ(bytes.size(), 3003 * CertificateLog::kRecordBytes);
  for (std::size_t record = 1; record <= 3002; ++record) {
    CHECK_EQ(at<std::uint64_t>(bytes, record, 8), record);
    CHECK(record == 1 ||
          at<std::int64_t>(bytes, record, 16) >= at<std::int64_t>(bytes, record - 1, 16));
  }
}

TEST(only_a_regular_file_is_opened_and_no_pipe_is_waited_for) {
  const std::string folder = "/tmp/rose-log-" + std::to_string(::getpid());
  CHECK_EQ(::mkdir(folder.c_str(), 0700), 0);
  const std::string pipe = folder + "/pipe";
  CHECK_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string{"/dev/null"}, std::string{"cut\0off", 7}}) {
    CHECK_EQ(CertificateLog::create(path, {}, std::make_shared<BootClock>()).status().code(),
             Code::kInvalidArgument);
  }
  CHECK(::access("cut", F_OK) != 0);
  ::unlink(pipe.c_str());
  ::rmdir(folder.c_str());
}

TEST(eight_threads_close_it_at_once) {
  for (int round = 0; round < 20; ++round) {
    const MemoryFile file;
    const auto log = make_log(file.path());
    rose::test::from_eight_threads([&] {
      CHECK(log->close().ok());
      // START, END, and the header before them.
      CHECK_EQ(file.content().size(), 3 * CertificateLog::kRecordBytes);
    });
  }
}

TEST(a_forked_child_writes_nothing) {
  const MemoryFile file;
  auto log = make_log(file.path());
  CHECK(log->append_gave_back("before"));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool has_refused =
        log->flush().code() == Code::kUnavailable && log->close().code() == Code::kUnavailable;
    log.reset();
    ::_exit(has_refused ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(log->append_gave_back("after"));
  CHECK(log->close().ok());
  const auto bytes = file.content();
  CHECK_EQ(bytes.size(), 5 * CertificateLog::kRecordBytes);
  for (std::size_t record = 1; record < 5; ++record) {
    CHECK_EQ(at<std::uint64_t>(bytes, record, 8), record);
  }
}

TEST(a_full_disk_makes_the_log_refuse_and_says_so) {
  FileDescriptor full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  CHECK_EQ(
      CertificateLog::create(std::move(full), {}, std::make_shared<BootClock>()).status().code(),
      Code::kOutOfMemory);
  CHECK(!CertificateLog::create("/nonexistent/log", {}, std::make_shared<BootClock>()).ok());
}

TEST(a_log_whose_disk_is_too_slow_is_no_longer_healthy_but_never_waits) {
  int ends[2];
  CHECK_EQ(::pipe(ends), 0);  // nobody reads, so the log's writer blocks
  const auto log = CertificateLog::create(FileDescriptor{ends[1]}, {.ttft_ms = 500},
                                          std::make_shared<BootClock>())
                       .take();
  while (log->append(ArrivedRecord{.tokens = 1, .slot = 0, .prefilled = 0})) {
  }
  CHECK(!log->is_healthy());
  CHECK(log->records() >= CertificateLog::kRingRecords);
  CHECK(!log->append(FinishedRecord{}));
  std::thread reader{[&] {
    char buffer[1 << 16];
    while (::read(ends[0], buffer, sizeof buffer) > 0) {
    }
  }};
  CHECK_EQ(log->close().code(), Code::kUnavailable);
  reader.join();
  ::close(ends[0]);
}

TEST(a_log_without_a_path_counts) {
  const auto log = make_log("");
  for (std::size_t i = 0; i < 2 * CertificateLog::kRingRecords; ++i)
    CHECK(log->append(FinishedRecord{}));
  CHECK_EQ(log->count(RecordKind::kFinished), 2 * CertificateLog::kRingRecords);
  CHECK(log->flush().ok());
  CHECK(log->close().ok());
  CHECK(log->close().ok());
  CHECK(!log->append(FinishedRecord{}));
}
