#include "base/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace rose {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<FileDescriptor> FileDescriptor::duplicate() const noexcept {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return from_errno("fcntl(F_DUPFD_CLOEXEC)", errno);
  return FileDescriptor{copy};
}

Result<FileDescriptor> create_memfd(const char* name, std::size_t size_bytes) noexcept {
  FileDescriptor fd{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd.is_open()) return from_errno("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return from_errno("ftruncate", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return from_errno("fcntl(F_ADD_SEALS)", errno);
  }
  return fd;
}

Result<Mapping> Mapping::create(const FileDescriptor& fd, std::size_t size_bytes,
                                Access access) noexcept {
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return from_errno("mmap", errno);
  return Mapping{static_cast<std::byte*>(data), size_bytes};
}

Status Mapping::replace(const FileDescriptor& fd) noexcept {
  // The kernel replaces the pages under its lock of the address space, so an access by another
  // thread happens before or after the replacement. ThreadSanitizer treats mmap() as a plain write
  // by this thread, but does not see the raw system call.
  const long data = ::syscall(SYS_mmap, data_, size_bytes_, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd.get(), 0);
  if (data == -1) return from_errno("mmap(MAP_FIXED)", errno);
  return {};
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace rose
