#include "compute/creditor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "check.h"
#include "together.h"

using namespace rose;
using namespace rose::compute;

namespace {

constexpr Nanoseconds kLongNs = 200'000'000'000;
constexpr CreditorConfig kConfig{.max_segments = 4, .poll_ns = 1'000'000};

class ScriptedPolicy final : public CreditPolicy {
 public:
  explicit ScriptedPolicy(std::function<std::uint32_t(const CreditRequest&)> answer)
      : answer_{std::move(answer)} {}
  CreditDecision decide(const CreditRequest& request) noexcept override {
    return {.segments = answer_(request), .retry_after_ns = 100'000};
  }

 private:
  std::function<std::uint32_t(const CreditRequest&)> answer_;
};

struct Scene {
  explicit Scene(std::function<std::uint32_t(const CreditRequest&)> answer)
      : creditor{gate, std::make_shared<ScriptedPolicy>(std::move(answer)),
                 std::make_shared<BootClock>(), kConfig} {}

  std::shared_ptr<HostGate> gate{[] {
    auto made = HostGate::create(std::make_shared<BootClock>());
    CHECK(made.ok());
    return made.take();
  }()};
  Creditor creditor;
};

}  // namespace

TEST(close_between_decision_and_open_wins) {
  HostGate* gate = nullptr;
  Scene scene{[&](const CreditRequest&) -> std::uint32_t {
    gate->close(CloseReason::kArrival);  // a request arrives after the policy has looked
    return 4;
  }};
  gate = scene.gate.get();
  gate->begin_step();
  (void)scene.creditor.look();
  CHECK(!gate->is_open());
  CHECK_EQ(scene.creditor.overtaken(), 1);
  CHECK_EQ(scene.creditor.grants(), 0);
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
}

TEST(whatever_the_policy_says_credit_is_at_most_one_quantum) {
  Scene scene{[](const CreditRequest&) { return 1000U; }};
  scene.gate->begin_step();
  for (int i = 0; i < 3; ++i) (void)scene.creditor.look();
  CHECK_EQ(scene.gate->credit_left(), kConfig.max_segments);
}

TEST(a_policy_that_stops_ends_rollouts_within_one_quantum) {
  bool is_willing = true;
  Scene scene{[&](const CreditRequest&) { return is_willing ? 4U : 0U; }};
  scene.gate->begin_step();
  for (int i = 0; i < 10; ++i) {
    (void)scene.creditor.look();
    CHECK_EQ(scene.gate->pass(1), Verdict::kPassed);
  }
  is_willing = false;
  std::uint32_t started = 0;
  for (int i = 0; i < 20; ++i) {
    (void)scene.creditor.look();
    started += scene.gate->pass(1) == Verdict::kPassed ? 1 : 0;
  }
  CHECK(started <= kConfig.max_segments);
  CHECK_EQ(scene.gate->credit_left(), 0);
}

TEST(a_refusal_opens_nothing) {
  Scene scene{[](const CreditRequest&) { return 0U; }};
  scene.gate->begin_step();
  CHECK_EQ(scene.creditor.look(), 100'000);
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->credit_left(), 0);
  CHECK_EQ(scene.creditor.refusals(), 1);
}

TEST(credit_left_over_by_a_close_is_taken_back) {
  std::uint32_t answer = 4;
  Scene scene{[&](const CreditRequest& request) {
    CHECK_EQ(request.outstanding, 0);
    return answer;
  }};
  scene.gate->begin_step();
  (void)scene.creditor.look();
  CHECK_EQ(scene.gate->credit_left(), 4);
  scene.gate->close(CloseReason::kArrival);
  answer = 1;
  (void)scene.creditor.look();
  CHECK_EQ(scene.gate->credit_left(), 1);
}

TEST(less_than_what_is_outstanding_changes_nothing_while_the_gate_is_open) {
  std::uint32_t answer = 2;
  Scene scene{[&](const CreditRequest&) { return answer; }};
  scene.gate->begin_step();
  (void)scene.creditor.look();
  answer = 1;
  (void)scene.creditor.look();
  CHECK_EQ(scene.gate->credit_left(), 2);
}

TEST(nobody_is_asked_while_the_borrower_has_no_work_or_credit_enough) {
  int asked = 0;
  Scene scene{[&](const CreditRequest&) {
    ++asked;
    return 4U;
  }};
  (void)scene.creditor.look();
  CHECK_EQ(asked, 0);
  scene.gate->begin_step();
  (void)scene.creditor.look();
  (void)scene.creditor.look();
  CHECK_EQ(asked, 1);
  scene.gate->shut_down();
  (void)scene.creditor.look();
  CHECK_EQ(asked, 1);
}

TEST(the_thread_keeps_a_borrower_running_and_never_more_than_a_quantum_ahead) {
  std::atomic<std::uint32_t> most{0};
  Scene scene{[](const CreditRequest&) { return 4U; }};
  CHECK(scene.creditor.start().ok());
  CHECK(!scene.creditor.start().ok());
  std::thread borrower{[&] {
    for (int step = 0; step < 200; ++step) {
      scene.gate->begin_step();
      for (int i = 0; i < 8; ++i) {
        CHECK_EQ(scene.gate->pass(kLongNs), Verdict::kPassed);
        most.store(std::max(most.load(), scene.gate->credit_left()));
      }
      scene.gate->end_step();
    }
  }};
  std::mt19937 random{3};
  for (int i = 0; i < 200; ++i) {
    scene.gate->close(CloseReason::kArrival);
    CHECK(scene.gate->wait_parked(kLongNs).has_value());
    scene.creditor.notify();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
  }
  borrower.join();
  CHECK_EQ(scene.gate->passed(), 1600);
  CHECK(most.load() <= kConfig.max_segments);
  scene.creditor.stop();
  scene.creditor.stop();
  CHECK(!scene.creditor.is_running());
}

TEST(eight_threads_stop_it_at_once) {
  for (int round = 0; round < 20; ++round) {
    Scene scene{[](const CreditRequest&) { return 0U; }};
    CHECK(scene.creditor.start().ok());
    rose::test::from_eight_threads([&] {
      scene.creditor.stop();
      CHECK(!scene.creditor.is_running());
    });
  }
}

TEST(the_destructor_joins) {
  Scene scene{[](const CreditRequest&) { return 0U; }};
  CHECK(scene.creditor.start().ok());
}
