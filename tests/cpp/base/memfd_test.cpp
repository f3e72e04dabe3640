#include "base/memfd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

#include "check.h"

using rose::Access;
using rose::FileDescriptor;
using rose::Mapping;

namespace {

constexpr std::size_t kBytes = 8192;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

FileDescriptor made() { return rose::create_memfd("test", kBytes).take(); }

}  // namespace

TEST(descriptor_is_closed_once_by_its_last_owner) {
  int number = -1;
  {
    FileDescriptor first = made();
    number = first.get();
    FileDescriptor second{std::move(first)};
    CHECK(!first.is_open());
    CHECK_EQ(second.get(), number);
    CHECK(is_open(number));
  }
  CHECK(!is_open(number));
}

TEST(assignment_closes_what_was_held) {
  FileDescriptor target = made();
  const int number = target.get();
  target = FileDescriptor{};
  CHECK(!is_open(number));
}

TEST(size_is_sealed_and_bytes_are_zero) {
  const FileDescriptor fd = made();
  CHECK(::ftruncate(fd.get(), 2 * kBytes) != 0);
  CHECK(::ftruncate(fd.get(), kBytes / 2) != 0);
  const Mapping mapping = Mapping::create(fd, kBytes, Access::kRead).take();
  for (std::size_t i = 0; i < kBytes; ++i) CHECK(mapping.data()[i] == std::byte{0});
}

TEST(two_mappings_show_the_same_bytes) {
  const FileDescriptor fd = made();
  const FileDescriptor copy = fd.duplicate().take();
  const Mapping writer = Mapping::create(fd, kBytes, Access::kReadWrite).take();
  const Mapping reader = Mapping::create(copy, kBytes, Access::kRead).take();
  // Two addresses of one byte: volatile, because the compiler assumes two bytes.
  volatile std::byte* here = writer.data();
  volatile std::byte* there = reader.data();
  here[kBytes - 1] = std::byte{42};
  CHECK(there[kBytes - 1] == std::byte{42});
}

TEST(mapping_of_nothing_is_a_failure) {
  CHECK(!Mapping::create(FileDescriptor{}, kBytes, Access::kRead).ok());
}
