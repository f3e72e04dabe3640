#include "transfer/chunk_shelf.h"

#include <chrono>
#include <limits>
#include <string>

namespace rose::transfer {

namespace {

Status check_frame(const ChunkKey& key, const Frame& frame) noexcept {
  if (!is_update(key.n, key.base_n)) {
    return Status::invalid_argument("an update cannot lead from version " +
                                    std::to_string(key.base_n) + " to " + std::to_string(key.n) +
                                    ": its base must be an older version, or -1 for none");
  }
  if (frame.bytes.empty() || frame.bytes.size() > kFrameBytesMax) {
    return Status::invalid_argument("the frame has " + std::to_string(frame.bytes.size()) +
                                    " bytes: the size must be from 1 to " +
                                    std::to_string(kFrameBytesMax));
  }
  return {};
}

}  // namespace

Status ChunkShelf::put(const ChunkKey& key, Frame frame) noexcept {
  ROSE_TRY(check_frame(key, frame));
  bool is_awaited = false;
  {
    const std::scoped_lock lock{mutex_};
    std::swap(frames_[key], frame);  // the old frame is freed below, without the mutex
    if (const auto miss = misses_.find(key); miss != misses_.end()) {
      is_awaited = true;
      if (!std::exchange(miss->second.is_taken, true)) --untaken_;
    }
  }
  if (is_awaited) bell_.ring();
  return {};
}

std::uint64_t ChunkShelf::forget(std::uint64_t n, std::int64_t base_n) noexcept {
  std::vector<Frame> dropped;
  const std::scoped_lock lock{mutex_};
  const auto first = frames_.lower_bound({n, base_n, 0});
  const auto last = frames_.upper_bound({n, base_n, std::numeric_limits<std::uint32_t>::max()});
  for (auto at = first; at != last; ++at) dropped.push_back(std::move(at->second));
  frames_.erase(first, last);
  const auto sent = sent_by_update_.extract({n, base_n});
  return sent ? sent.mapped() : 0;
}

Result<std::uint32_t> ChunkShelf::give(const ChunkKey& key, Frame frame) noexcept {
  ROSE_TRY(check_frame(key, frame));
  std::uint32_t waiting = 0;
  {
    const std::scoped_lock lock{mutex_};
    const auto miss = misses_.find(key);
    if (miss == misses_.end()) return waiting;
    if (!std::exchange(miss->second.is_taken, true)) --untaken_;
    std::swap(miss->second.given, frame);
    waiting = miss->second.waiting;
  }
  bell_.ring();
  return waiting;
}

void ChunkShelf::refuse(const ChunkKey& key) noexcept {
  {
    const std::scoped_lock lock{mutex_};
    const auto miss = misses_.find(key);
    if (miss == misses_.end() || miss->second.is_refused) return;
    if (!std::exchange(miss->second.is_taken, true)) --untaken_;
    miss->second.is_refused = true;
  }
  bell_.ring();
}

std::vector<ChunkKey> ChunkShelf::take_misses(Nanoseconds timeout_ns, std::size_t most) noexcept {
  std::unique_lock lock{mutex_};
  missed_.wait_for(lock, std::chrono::nanoseconds{timeout_ns},
                   [this] { return untaken_ > 0 || is_closed_; });
  std::vector<ChunkKey> taken;
  if (is_closed_) return taken;
  for (auto& [key, miss] : misses_) {
    if (untaken_ == 0 || taken.size() == most) break;
    if (std::exchange(miss.is_taken, true)) continue;
    --untaken_;
    taken.push_back(key);
  }
  return taken;
}

void ChunkShelf::close() noexcept {
  const std::scoped_lock lock{mutex_};
  is_closed_ = true;
  missed_.notify_all();
}

std::uint64_t ChunkShelf::sent_bytes(std::uint64_t n, std::int64_t base_n) const noexcept {
  const std::scoped_lock lock{mutex_};
  const auto sent = sent_by_update_.find({n, base_n});
  return sent == sent_by_update_.end() ? 0 : sent->second;
}

std::uint64_t ChunkShelf::sent_bytes() const noexcept {
  const std::scoped_lock lock{mutex_};
  return sent_bytes_;
}

ShelfAnswer ChunkShelf::look(const ChunkKey& key, bool may_wait) noexcept {
  const std::scoped_lock lock{mutex_};
  if (const auto kept = frames_.find(key); kept != frames_.end()) {
    return {Shelved::kKept, kept->second};
  }
  if (!may_wait || is_closed_) return {};
  const auto [miss, is_new] = misses_.try_emplace(key);
  if (miss->second.is_refused) return {};
  if (!miss->second.given.bytes.empty()) return {Shelved::kKept, miss->second.given};
  ++miss->second.waiting;
  if (is_new) {
    ++untaken_;
    missed_.notify_one();
  }
  return {Shelved::kWaiting, {}};
}

ShelfAnswer ChunkShelf::settle(const ChunkKey& key) noexcept {
  Frame dropped;
  const std::scoped_lock lock{mutex_};
  const auto miss = misses_.find(key);
  if (miss == misses_.end()) return {};
  Frame found = miss->second.given;
  if (const auto kept = frames_.find(key); kept != frames_.end()) found = kept->second;
  const bool is_kept = !found.bytes.empty();
  if (!is_kept && !miss->second.is_refused) return {Shelved::kWaiting, {}};
  dropped = leave_locked(miss);
  return {is_kept ? Shelved::kKept : Shelved::kAbsent, std::move(found)};
}

void ChunkShelf::leave(const ChunkKey& key) noexcept {
  Frame dropped;
  const std::scoped_lock lock{mutex_};
  if (const auto miss = misses_.find(key); miss != misses_.end()) dropped = leave_locked(miss);
}

Frame ChunkShelf::leave_locked(std::map<ChunkKey, Miss>::iterator miss) noexcept {
  if (--miss->second.waiting > 0) return {};
  if (!miss->second.is_taken) --untaken_;
  Frame given = std::move(miss->second.given);
  misses_.erase(miss);
  return given;
}

void ChunkShelf::count_sent(const ChunkKey& key, std::size_t nbytes) noexcept {
  const std::scoped_lock lock{mutex_};
  sent_bytes_ += nbytes;
  if (const auto kept = frames_.find(key); kept != frames_.end()) {
    sent_by_update_[{key.n, key.base_n}] += nbytes;
  }
}

}  // namespace rose::transfer
