// Turns that wait get workers; turns that are stuck are freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/placement.h"

namespace rose::scheduler {

// After place() no turn in the queue could be started: every worker lacks the room, the version or
// the lease, is avoided by that turn, has caches that it spares, or is kept for one that has
// starved. Only caches that starts gave up may have left room; then the next step looks again.
class Dispatch {
 public:
  explicit Dispatch(Book& book) noexcept : book_{book}, placement_{book.settings, book.policy} {}

  // Starts all that can start, in the order of the queue; a turn that does not fit lets smaller
  // ones behind it pass, until it has starved.
  void place();
  // Recalls turns of borrowed workers that show no progress, if others have room for them now.
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

  // The turns of a job that are still to be looked at.
  struct Cursor {
    Place next;
    bool waits{false};  // its next turn has room only where its job is barred for now
  };

  // What a turn asked for that found no worker.
  struct Failure {
    std::size_t job;
    double need_tokens;
    double most_tokens;
    double prompt_tokens;
    double version_floor;
    double restart_tokens;
    bool spares_caches;
  };

  // Starts the turn if it can. False if it could but for a bar.
  bool try_start(const QueueKey& key);
  void place_in_order();
  // Of several jobs with a device in common, the one that is ahead waits for the others.
  void place_fairly();
  Cursor* first_cursor() noexcept;
  Place skip_to(Place place, std::size_t job) const noexcept;
  bool is_barred_only(const Query& query) const noexcept;
  void refresh_bars(std::size_t slot);
  // Sets when time alone lets less be asked of its worker.
  void wait(const Trajectory& trajectory, const Query& query, QueueRank rank) noexcept;
  // Whether its warm home could take it, were there room.
  bool can_go_home(const Query& query) const noexcept;
  // Whether it could start but for caches that it spares.
  bool is_stopped_by_caches(Query query);
  // Whether one that asked for no more found nothing.
  bool is_hopeless(const Query& query) const noexcept;
  void note_failure(const Query& query);

  // A turn that has starved may run anywhere, also where its trajectory may get too old.
  Query query_of(const Trajectory& trajectory, bool has_starved) const;
  void look_over_workers();
  std::optional<std::size_t> avoided_slot(const Trajectory& trajectory) const noexcept;
  // Keeps the worker that lacks least for a turn that has starved; nobody else starts there.
  void keep_for(const Query& query);
  double room_max(const Query& query) const noexcept;
  void rescue_from(std::size_t slot);

  Book& book_;
  Placement placement_;
  Nanoseconds place_at_ns_{kNever};  // when time alone may let a turn start
  std::vector<std::size_t> kept_;
  std::vector<double> limits_;                 // by job: turns that need more find no room
  std::vector<bool> has_dedicated_;            // by job: one with a live lease
  std::vector<std::int64_t> oldest_versions_;  // by job: of a worker with a live lease
  std::vector<Promise> promises_;
  std::vector<Failure> failures_;
  std::vector<Cursor> cursors_;            // by job
  std::vector<std::int64_t> least_wants_;  // by job, when all bars were last looked at
  std::size_t jobs_left_{0};               // that may find room yet
  std::int64_t starts_{0};
};

}  // namespace rose::scheduler
