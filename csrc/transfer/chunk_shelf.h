// The frames that a chunk server has, and the asks that wait for one it has not.
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

// Bytes of somebody else, who keeps them as they are while `owner` lives.
struct Frame {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

enum class Shelved { kKept, kAbsent, kWaiting };

struct ShelfAnswer {
  Shelved state{Shelved::kAbsent};
  Frame frame;  // when it is kept
};

// Any thread. The mutex is held over no system call but the ring of a bell and the wake of a
// waiter, and never while a frame's owner is let go.
//
// Invariants:
//   1. Each miss is handed out by take_misses() once while anyone waits for it.
//   2. A miss lives as long as somebody waits: every look() that said kWaiting is answered by one
//      settle() that says something else, or by one leave().
class ChunkShelf {
 public:
  // `bell` rings when a chunk that somebody waits for came or was refused.
  explicit ChunkShelf(EventFd bell) noexcept : bell_{std::move(bell)} {}

  // ---- by who has the frames

  // Keeps a frame; one of the same key is replaced. InvalidArgument when no frame can be so long,
  // or the key is none.
  Status put(const ChunkKey& key, Frame frame) noexcept;
  // Drops all frames of an update. Returns how many bytes of its frames were sent.
  std::uint64_t forget(std::uint64_t n, std::int64_t base_n) noexcept;
  // Answers whoever waits for it now, and keeps nothing. Returns how many do.
  Result<std::uint32_t> give(const ChunkKey& key, Frame frame) noexcept;
  // Whoever waits for it is told that it is not kept; asks of later start anew.
  void refuse(const ChunkKey& key) noexcept;
  // At most `most` misses that were not handed out yet, in the order of their keys; waits for one.
  // Empty at the deadline and once the shelf is closed.
  std::vector<ChunkKey> take_misses(Nanoseconds timeout_ns, std::size_t most) noexcept;
  // Wakes whoever waits for misses; nobody waits any more after it.
  void close() noexcept;

  // Bytes of frames that went out whole. Of an update: since it was there, or was forgotten last.
  std::uint64_t sent_bytes(std::uint64_t n, std::int64_t base_n) const noexcept;
  std::uint64_t sent_bytes() const noexcept;

  // ---- by the server's thread

  // What there is for a key. When nothing is and `may_wait`, the asker waits for it.
  ShelfAnswer look(const ChunkKey& key, bool may_wait) noexcept;
  // Looks again for one that waits.
  ShelfAnswer settle(const ChunkKey& key) noexcept;
  // One that waited does no more.
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
    Frame given;  // for those who wait; empty until it is there
  };

  // The caller lets go of what it returns without the mutex.
  Frame leave_locked(std::map<ChunkKey, Miss>::iterator miss) noexcept;

  const EventFd bell_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable missed_;
  std::map<ChunkKey, Frame> frames_;
  std::map<ChunkKey, Miss> misses_;
  std::size_t untaken_{0};  // misses that were not handed out
  std::map<Update, std::uint64_t> sent_by_update_;
  std::uint64_t sent_bytes_{0};
  bool is_closed_{false};
};

}  // namespace rose::transfer
