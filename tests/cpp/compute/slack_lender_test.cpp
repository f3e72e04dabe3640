#include "compute/slack_lender.h"

#include <functional>
#include <thread>

#include "check.h"
#include "compute/creditor.h"

using namespace rose;
using namespace rose::compute;

namespace {

class Policy final : public CreditPolicy {
 public:
  CreditDecision decide(const CreditRequest& request) noexcept override {
    if (on_decide) on_decide();
    return {.segments = segments, .until_ns = request.now_ns + 1'000'000'000};
  }

  std::uint32_t segments{3};
  std::function<void()> on_decide;
};

struct Scene {
  Scene() {
    auto made = HostGate::create(clock);
    CHECK(made.ok());
    gate = made.take();
    lender = std::make_unique<SlackLender>(gate, policy, clock, SlackConfig{});
    gate->begin_step();
  }

  std::shared_ptr<const Clock> clock{std::make_shared<ManualClock>()};
  std::shared_ptr<HostGate> gate;
  std::shared_ptr<Policy> policy{std::make_shared<Policy>()};
  std::unique_ptr<SlackLender> lender;
};

}  // namespace

TEST(an_offer_opens_the_gate_for_its_quantum) {
  Scene scene;
  const auto offer = scene.lender->offer();
  CHECK(offer.has_value());
  CHECK_EQ(offer->segments, 3);
  CHECK(scene.gate->is_open());
  CHECK_EQ(scene.gate->credit_left(), 3);
  CHECK(!scene.lender->offer().has_value());  // an open gate is not offered again
  scene.lender->withdraw();
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->close_reason(), CloseReason::kStep);
}

TEST(nothing_is_offered_while_a_segment_runs_or_nobody_would_run) {
  Scene scene;
  scene.gate->set_credit(1);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  CHECK_EQ(scene.gate->pass(0), Verdict::kPassed);
  scene.gate->close(CloseReason::kArrival);
  CHECK(!scene.lender->offer().has_value());
  scene.gate->leave();
  CHECK(scene.lender->offer().has_value());
  scene.lender->withdraw();
  scene.gate->end_step();
  CHECK(!scene.lender->offer().has_value());
}

TEST(on_a_device_the_segment_that_nobody_sees_end_is_one_of_the_quantum) {
  Scene scene;
  scene.gate->set_on_device(true);
  const auto offer = scene.lender->offer();
  CHECK(offer.has_value());
  CHECK_EQ(offer->segments, 2);
  CHECK_EQ(scene.gate->credit_left(), 2);
  scene.lender->withdraw();
  scene.policy->segments = 1;
  CHECK(!scene.lender->offer().has_value());
  CHECK(!scene.gate->is_open());
}

TEST(one_decides_at_a_time_who_may_start_what) {
  Scene scene;
  auto creditors = std::make_shared<Policy>();
  Creditor creditor{scene.gate, creditors, scene.clock, {}};
  bool has_offered = false;
  creditors->on_decide = [&] {
    // If the creditor is deciding, serving's thread does not wait, and opens nothing.
    std::thread{[&] { has_offered = scene.lender->offer().has_value(); }}.join();
  };
  creditor.look();
  CHECK(!has_offered);
  CHECK(scene.gate->is_open());  // the creditor's
}

TEST(a_stopped_lender_offers_nothing_until_it_is_started_again) {
  Scene scene;
  scene.lender->set_stopped(true);
  CHECK(!scene.lender->offer().has_value());
  CHECK_EQ(scene.lender->lend(), 0);
  scene.lender->set_stopped(false);
  CHECK(scene.lender->offer().has_value());
}

TEST(credit_that_cannot_be_set_opens_nothing) {
  Scene scene;
  scene.gate->drain_to(10);  // an abort that the device has not followed yet
  CHECK(!scene.lender->offer().has_value());
  CHECK(!scene.gate->is_open());
  scene.gate->end_drain();
  CHECK(scene.lender->offer().has_value());
}
