#include "coserving/gate_listener.h"

#include "check.h"
#include "scene.h"

using namespace rose;
using namespace rose::test;

TEST(gate_is_closed_and_counted_before_an_arrival_returns) {
  Scene scene;
  scene.gate->expect_arrival(HostGate::kExpectMaxNs);
  const std::uint32_t epoch = scene.gate->close_epoch();
  CHECK(scene.gate->open(epoch));
  CHECK_EQ(scene.state->arrived(10), 0);
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->close_epoch(), epoch + 1);
  CHECK_EQ(scene.gate->close_reason(), CloseReason::kArrival);
  CHECK(!scene.gate->expects_arrival());
}

TEST(arrival_rings_the_demand_only_if_it_closed_an_open_gate) {
  Scene scene;
  const std::uint32_t rung = scene.gate->demand();
  (void)scene.state->arrived(10);
  CHECK_EQ(scene.gate->demand(), rung);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  (void)scene.state->arrived(10);
  CHECK_EQ(scene.gate->demand(), rung + 1);
}

TEST(end_of_the_last_request_rings_the_demand) {
  Scene scene;
  (void)scene.state->arrived(10);
  (void)scene.state->arrived(10);
  const std::uint32_t rung = scene.gate->demand();
  CHECK(scene.state->finished(0));
  CHECK_EQ(scene.gate->demand(), rung);
  CHECK(scene.state->finished(1));
  CHECK_EQ(scene.gate->demand(), rung + 1);
  CHECK(!scene.gate->is_open());
}

TEST(without_early_close_an_arrival_leaves_the_gate_open) {
  LogHeader header = kIdleOnly;
  header.without = 1U << static_cast<std::uint32_t>(Mechanism::kEarlyClose);
  Scene scene{header};
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  (void)scene.state->arrived(10);
  CHECK(scene.gate->is_open());
}
