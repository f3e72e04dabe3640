// The frames of a chunk server, and the requests that wait for a missing one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"
#include "transfer/chunk_wire.h"

namespace rose::transfer {

// Borrowed bytes, constant while `owner` lives.
struct Frame {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

enum class Shelved { kKept, kAbsent, kWaiting };

struct ShelfAnswer {
  Shelved state{Shelved::kAbsent};
  Frame frame;  // if kept
};

// Any thread. The mutex is held during no system call except ringing a bell and waking a waiter,
// and never while a frame's owner is released.
//
// Invariants:
//   1. take_misses() returns each miss once while a request waits for it.
//   2. A miss lives while a request waits: every look() that returned kWaiting is followed by one
//      settle() with another result, or by one leave().
class ChunkShelf {
 public:
  // `bell` rings when an awaited chunk has come or was refused.
  explicit ChunkShelf(EventFd bell) noexcept : bell_{std::move(bell)} {}

  // ---- for the owner of the frames

  // Keeps a frame, replacing one of the same key. InvalidArgument for an impossible length or an
  // invalid key.
  Status put(const ChunkKey& key, Frame frame) noexcept;
  // Drops all frames of an update. Returns how many bytes of them were sent.
  std::uint64_t forget(std::uint64_t n, std::int64_t base_n) noexcept;
  // Answers the requests that wait now, and keeps nothing. Returns their number.
  Result<std::uint32_t> give(const ChunkKey& key, Frame frame) noexcept;
  // Tells waiting requests that the frame is not kept; later requests start anew.
  void refuse(const ChunkKey& key) noexcept;
  // At most `most` new misses, in the order of their keys; waits for one. Empty at the deadline and
  // after close().
  std::vector<ChunkKey> take_misses(Nanoseconds timeout_ns, std::size_t most) noexcept;
  // Wakes all waiters for misses; later calls do not wait.
  void close() noexcept;

  // Bytes of frames that were sent whole. For an update: since it came or was last forgotten.
  std::uint64_t sent_bytes(std::uint64_t n, std::int64_t base_n) const noexcept;
  std::uint64_t sent_bytes() const noexcept;

  // ---- for the server's thread

  // The frame of a key. If it is missing and `may_wait`, the request waits for it.
  ShelfAnswer look(const ChunkKey& key, bool may_wait) noexcept;
  // Looks again for a waiting request.
  ShelfAnswer settle(const ChunkKey& key) noexcept;
  // Ends the wait of one request.
  void leave(const ChunkKey& key) noexcept;
  void count_sent(const ChunkKey& key, std::size_t nbytes) noexcept;
  int bell() const noexcept { return bell_.get(); }
  void ring() const noexcept { bell_.ring(); }
  void silence() const noexcept { bell_.silence(); }

 private:
  using Update = std::pair<std::uint64_t, std::int64_t>;
  struct Miss {
    std::uint32_t waiting{0};
    bool is_taken{false};
    bool is_refused{false};
    Frame given;  // for the waiting requests; empty until it has come
  };

  // The caller releases the returned frame without the mutex.
  Frame leave_locked(std::map<ChunkKey, Miss>::iterator miss) noexcept;

  const EventFd bell_;
  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable missed_;
  std::map<ChunkKey, Frame> frames_;
  std::map<ChunkKey, Miss> misses_;
  std::size_t untaken_{0};  // misses not yet taken
  std::map<Update, std::uint64_t> sent_by_update_;
  std::uint64_t sent_bytes_{0};
  bool is_closed_{false};
};

}  // namespace rose::transfer
