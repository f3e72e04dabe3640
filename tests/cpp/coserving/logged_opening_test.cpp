#include "coserving/logged_opening.h"

#include <vector>

#include "check.h"
#include "scene.h"

using namespace rose;
using namespace rose::test;

TEST(segment_of_the_watchdog_is_recorded_with_its_number_and_epoch) {
  Scene scene;
  const auto clock = std::make_shared<ManualClock>();
  Watchdog watchdog{scene.gate, std::make_shared<LoggedOpening>(scene.log), clock, 50 * kMs};
  scene.gate->begin_step();
  scene.gate->grant(1);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  CHECK_EQ(scene.gate->pass(0), Verdict::kPassed);
  (void)scene.state->arrived(10);
  CHECK(!scene.gate->try_pass().has_value());
  watchdog.enter();
  (void)watchdog.look();
  clock->advance(51 * kMs);
  (void)watchdog.look();
  CHECK(scene.gate->is_open());
  const auto forced = records_of(*scene.log, scene.file).back().as<ForcedRecord>();
  CHECK_EQ(forced.passed, scene.gate->passed());
  CHECK_EQ(forced.close_epoch, scene.gate->close_epoch());
}

TEST(progress_changes_with_every_token_of_a_live_request) {
  Scene scene;
  const auto progress = token_progress(scene.state);
  CHECK_EQ(progress(), 0);
  const std::vector slots{scene.state->arrived(10)};
  std::uint64_t last = progress();
  CHECK(last > 0);
  for (int token = 0; token < 3; ++token) {
    (void)scene.state->emitted(slots);
    CHECK(progress() != last);
    last = progress();
  }
  CHECK(scene.state->finished(slots.front()));
  CHECK_EQ(progress(), 0);
}
