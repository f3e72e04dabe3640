// Anonymous shared memory. Nothing has a name in /dev/shm, so nothing leaks if a process dies.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace rose {

// Owns one file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() noexcept = default;
  explicit FileDescriptor(int fd) noexcept : fd_{fd} {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  // A second descriptor for the same file, close-on-exec.
  Result<FileDescriptor> duplicate() const noexcept;

 private:
  int fd_{-1};
};

// Creates a memfd of exactly `size_bytes` zeros whose size is sealed. On error nothing is left.
Result<FileDescriptor> create_memfd(const char* name, std::size_t size_bytes) noexcept;

enum class Access { kRead, kReadWrite };

// Owns one shared mapping of a memfd, from its first byte on.
class Mapping {
 public:
  Mapping() noexcept = default;
  static Result<Mapping> create(const FileDescriptor& fd, std::size_t size_bytes,
                                Access access) noexcept;
  Mapping(Mapping&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)},
        size_bytes_{std::exchange(other.size_bytes_, 0)} {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Maps the first bytes of `fd` instead, at the same address, atomically for all threads. The file
  // must be at least as long as the mapping. On error the mapping is unchanged.
  Status replace(const FileDescriptor& fd) noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  Mapping(std::byte* data, std::size_t size_bytes) noexcept
      : data_{data}, size_bytes_{size_bytes} {}

  std::byte* data_{nullptr};
  std::size_t size_bytes_{0};
};

}  // namespace rose
