#include "coserving/borrower_step.h"

#include <vector>

#include "check.h"
#include "memory/two_parties.h"

using namespace rose;
using namespace rose::compute;
using namespace rose::coserving;
using namespace rose::test;

namespace {

struct Borrowing {
  Borrowing() {
    CHECK(all.grant(3));
    CHECK(all.tenant->look().ok());
    CHECK(all.alloc(9));  // blocks in each slab
  }

  std::optional<Verdict> start() {
    return start_step(*all.tenant, *gate, [this] { return gate->pass(0); });
  }
  void open() {
    gate->grant(1);
    CHECK(gate->open(gate->close_epoch()));
  }

  TwoParties all;
  std::shared_ptr<HostGate> gate{HostGate::create(all.clock).take()};
};

}  // namespace

TEST(step_starts_with_its_first_segment) {
  Borrowing one;
  one.open();
  CHECK_EQ(one.start(), Verdict::kPassed);
  CHECK(one.gate->is_in_step());
  CHECK(one.gate->is_running());
}

TEST(without_a_quantum_no_step_is_left_behind) {
  Borrowing one;
  CHECK_EQ(one.start(), Verdict::kTimedOut);
  CHECK(!one.gate->is_in_step());
}

TEST(no_step_starts_while_slabs_are_past_their_deadline) {
  Borrowing one;
  one.open();
  one.all.revoke(1, one.all.serving);
  one.all.clock->advance(2 * kSecond);
  CHECK(one.all.arbiter->poll(one.all.revocation).ok());
  CHECK(!one.start().has_value());
  CHECK(!one.gate->is_in_step());
  one.all.free_all();
  CHECK(one.all.arbiter->sweep(one.all.rollout).ok());
  CHECK_EQ(one.start(), Verdict::kPassed);
}

TEST(late_slabs_do_not_hide_that_the_gate_is_shut_down) {
  Borrowing one;
  one.all.revoke(1, one.all.serving);
  one.all.clock->advance(2 * kSecond);
  CHECK(one.all.arbiter->poll(one.all.revocation).ok());
  one.gate->shut_down();
  CHECK_EQ(one.start(), Verdict::kShutDown);
}

TEST(plan_tells_leaving_slabs_from_the_others_and_its_order_decides_the_next_revocation) {
  Borrowing one;
  const std::vector<SlabId> all = begin_plan(*one.all.tenant).take().lent;
  CHECK_EQ(all.size(), 3);
  const std::vector<SlabId> order{all[2], all[0], all[1]};
  CHECK(end_plan(*one.all.tenant, order).ok());
  one.all.revoke(1, one.all.serving);
  const PlannedSlabs plan = begin_plan(*one.all.tenant).take();
  CHECK_EQ(plan.leaving, std::vector{all[2]});
  CHECK_EQ(plan.lent, (std::vector{all[0], all[1]}));
  CHECK(end_plan(*one.all.tenant, {}).ok());
}

TEST(plan_ends_even_if_its_order_names_a_slab_that_does_not_exist) {
  Borrowing one;
  CHECK(one.all.tenant->attend(kSecond).ok());
  CHECK(begin_plan(*one.all.tenant).ok());
  const std::vector<SlabId> order{99};
  CHECK_EQ(end_plan(*one.all.tenant, order).code(), Code::kInvalidArgument);
  one.all.revoke(1, one.all.serving);
  // The hold has ended, so the attachment's thread gives up the closed slab.
  const Nanoseconds end_ns = BootClock{}.now_ns() + 60 * kSecond;
  while (one.all.arbiter->poll(one.all.revocation).value().returned < 1) {
    CHECK(BootClock{}.now_ns() < end_ns);
    CHECK(one.all.arbiter->sweep(one.all.rollout).ok());
  }
}
