// The frames of a chunk server, and the requests that wait for missing frames.
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

// Any thread may use it. The mutex is not held during a system call, except to wake a waiter, and
// not while a frame's owner is released.
//
// A miss is a missing frame for which requests wait. Invariants:
//   1. take_misses() returns each miss once.
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
  // Drops all frames of an update. Returns the number of bytes of these frames that were sent.
  std::uint64_t forget(std::uint64_t n, std::int64_t base_n) noexcept;
  // Answers the requests that currently wait for the key, and returns their number. The frame is
  // not kept for later requests.
  Result<std::uint32_t> give(const ChunkKey& key, Frame frame) noexcept;
  // Gives a negative answer to the requests that wait for the key: the frame is not kept. A later
  // request starts a new wait.
  void refuse(const ChunkKey& key) noexcept;
  // Waits for a new miss, and returns at most `most` new misses in the order of their keys. Empty
  // at the deadline and after close().
  std::vector<ChunkKey> take_misses(Nanoseconds timeout_ns, std::size_t most) noexcept;
  // Wakes all waiters for misses; later calls do not wait.
  void close() noexcept;

  // Bytes of frames that were sent whole. For an update, only kept frames count, and only since its
  // last forget().
  std::uint64_t sent_bytes(std::uint64_t n, std::int64_t base_n) const noexcept;
  std::uint64_t sent_bytes() const noexcept;

  // ---- for the server's thread

  // Returns the frame of a key. If the frame is missing and `may_wait` is true, the request waits
  // for the frame.
  ShelfAnswer look(const ChunkKey& key, bool may_wait) noexcept;
  // Looks again for the frame of a waiting request.
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
    Frame given;  // frame from give(), for the waiting requests only; else empty
  };

  // Call with the mutex. The caller releases the returned frame after unlocking it.
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
