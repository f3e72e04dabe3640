// A back end that wraps another one and fails on purpose, to test what a failure leaves behind.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "memory/page_backend.h"

namespace rose::memory {

// The call to fail, and counts of live objects.
struct FaultPlan {
  std::int64_t fail_call{0};  // number of the call that fails, from 1; 0: no call fails
  Status failure{Status::out_of_memory("this call fails on purpose")};

  std::int64_t calls{0};  // number of calls so far that can fail
  std::int64_t live_ranges{0};
  std::int64_t live_objects{0};
  std::int64_t live_mappings{0};

  bool is_clean() const noexcept {
    return live_ranges == 0 && live_objects == 0 && live_mappings == 0;
  }
};

// Invariant: a call that fails on purpose never reaches the inner back end.
class FaultyBackend final : public PageBackend {
 public:
  // The test also keeps the plan, so that it can read the counts after the back end is destroyed.
  FaultyBackend(std::unique_ptr<PageBackend> inner, std::shared_ptr<FaultPlan> plan) noexcept
      : inner_{std::move(inner)}, plan_{std::move(plan)} {}

  bool is_on_host() const noexcept override { return inner_->is_on_host(); }
  Result<VaRange> reserve(std::size_t size_bytes) noexcept override;
  void release_range(VaRange range) noexcept override;
  Result<PageHandle> create(std::size_t size_bytes) noexcept override;
  void release(PageHandle handle) noexcept override;
  Status map(std::byte* at, PageHandle handle) noexcept override;
  void unmap(VaRange range) noexcept override;
  Status clear(VaRange range) noexcept override;
  Status scrub(VaRange range) noexcept override;
  Result<FileDescriptor> export_fd(PageHandle handle) noexcept override;
  Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept override;

 private:
  Status next_call() noexcept;

  std::unique_ptr<PageBackend> inner_;
  std::shared_ptr<FaultPlan> plan_;
};

}  // namespace rose::memory
