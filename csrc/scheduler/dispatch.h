// Assigns waiting turns to workers, and recalls stalled turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/placement.h"

namespace rose::scheduler {

// After place(), each queued turn waits for newer weights, or no worker can take it. A worker
// cannot take a turn if the worker
//   - has no grant, no room, or weights that are too old or that the turn does not accept,
//   - is avoided by the turn, or holds caches that the turn spares,
//   - is kept for a starved turn,
//   - or would exceed a limit on restarts, exposure or unfairness.
// While the scheduler is paused, no turn starts. The only other exception is room that starting
// turns freed when they gave up caches; the next step uses that room.
class Dispatch {
 public:
  explicit Dispatch(Book& book) noexcept : book_{book}, placement_{book.settings, book.policy} {}

  // Starts turns in queue order. Smaller turns may pass a turn that does not fit, until it starves.
  void place();
  // Recalls turns without progress from borrowed workers, if other workers have room for them.
  void rescue();

  template <typename Image>
  void image(Image& image) {
    image(place_at_ns_);
  }

 private:
  struct Promise {
    std::size_t slot;
    std::int64_t tokens;
  };

  using Place = TurnQueue::Place;

  // Position in a job's queued turns.
  struct Cursor {
    Place next;
    bool waits{false};  // the next turn has room only where its job is currently barred
  };

  // The demand of a turn that found no worker.
  struct Failure {
    std::size_t job;
    double need_tokens;
    double most_tokens;
    double prompt_tokens;
    double version_floor;
    double version_ceiling;
    double restart_tokens;
    bool is_suspect;
    bool spares_caches;
  };

  // Starts the turn if possible. False if only a bar prevents it.
  bool try_start(const QueueKey& key);
  void place_in_order();
  // Among jobs that share a device, a job that is ahead waits for the others.
  void place_fairly();
  Cursor* first_cursor() noexcept;
  Place skip_to(Place place, std::size_t job) const noexcept;
  bool is_barred_only(const Query& query) const noexcept;
  void refresh_bars(std::size_t slot);
  // Makes place() search again once the turn's demands have dropped with time, even if no event
  // arrives until then.
  void wait(const Trajectory& trajectory, const Query& query, QueueRank rank) noexcept;
  // True if the turn's warm home (the worker whose cache has the context) can run the turn as soon
  // as there is room.
  bool can_go_home(const Query& query) const noexcept;
  // True if only the caches that the turn spares prevent its start.
  bool is_stopped_by_caches(Query query);
  // True if a turn that needs as much or less has already found no worker.
  bool is_hopeless(const Query& query) const noexcept;
  void note_failure(const Query& query);

  // A starved turn may run anywhere, even where its trajectory may become stale.
  Query query_of(const Trajectory& trajectory, bool has_starved) const;
  void look_over_workers();
  std::optional<std::size_t> avoided_slot(const Trajectory& trajectory) const noexcept;
  // Keeps the worker with the smallest shortage for a starved turn; no other turn starts there.
  void keep_for(const Query& query);
  double room_max(const Query& query) const noexcept;
  void rescue_from(std::size_t slot);

  Book& book_;
  Placement placement_;
  Nanoseconds place_at_ns_{kNever};  // when time alone may let a turn start
  std::vector<std::size_t> kept_;
  std::vector<double> limits_;                 // by job: turns that need more find no room
  std::vector<bool> has_dedicated_;            // by job: a dedicated worker has a live grant
  std::vector<std::int64_t> oldest_versions_;  // by job, of workers with a live grant
  std::vector<Promise> promises_;
  std::vector<Failure> failures_;
  std::vector<Cursor> cursors_;            // by job
  std::vector<std::int64_t> least_wants_;  // by job: smallest need at the last check of all bars
  std::size_t jobs_left_{0};               // jobs that may still find room
  std::int64_t starts_{0};
};

}  // namespace rose::scheduler
