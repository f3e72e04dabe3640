// Memory that changes while it is read: the new weights and the shadow are two mappings of the same
// pages, a few elements apart. So each write to the shadow changes an element of the new weights,
// in the same order in every run, and without a second thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "check.h"
#include "transfer/box.h"

namespace rose::test {

template <typename T>
class TwiceMapped {
 public:
  // Writing element i of the shadow changes element i + `ahead` of the new weights.
  TwiceMapped(const std::vector<T>& pages, std::size_t ahead)
      : count_{pages.size() - ahead}, bytes_{sizeof(T) * pages.size()}, ahead_{ahead} {
    const int file = ::memfd_create("weights", 0);
    CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes_)) == 0);
    for (T** const place : {&fresh_, &shadow_}) {
      void* const mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      CHECK(mapped != MAP_FAILED);
      *place = static_cast<T*>(mapped);
    }
    ::close(file);
    std::ranges::copy(pages, shadow_);
  }
  ~TwiceMapped() {
    ::munmap(fresh_, bytes_);
    ::munmap(shadow_, bytes_);
  }
  TwiceMapped(const TwiceMapped&) = delete;
  TwiceMapped& operator=(const TwiceMapped&) = delete;

  transfer::Box<const T> fresh() const { return transfer::row_of<const T>(fresh_, count_); }
  transfer::Box<T> shadow() const { return transfer::row_of(shadow_ + ahead_, count_); }
  std::vector<T> held() const { return {shadow().data, shadow().data + count_}; }

 private:
  std::size_t count_;
  std::size_t bytes_;
  std::size_t ahead_;
  T* fresh_{nullptr};
  T* shadow_{nullptr};
};

}  // namespace rose::test
