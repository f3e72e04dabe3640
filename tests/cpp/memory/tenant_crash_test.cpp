// Either party dies after every single store to shared memory, in every state of a loan; whoever is
// left must find no slab with two owners, and serving its memory.
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "crash.h"
#include "two_parties.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

namespace {

struct Step {
  const char* name;
  std::function<void(TwoParties&)> act;
};
using Steps = std::vector<Step>;

// How far a loan has come when the party begins to do what it will not finish.
Steps states() {
  const auto admitted = [](TwoParties& all) {
    CHECK(all.grant(3));
    CHECK(all.tenant->look().ok());
  };
  const auto used = [=](TwoParties& all) {
    admitted(all);
    CHECK(all.alloc(5));  // one slab full, one begun, one idle
  };
  return {
      {"nothing is lent", [](TwoParties&) {}},
      {"granted, not seen", [](TwoParties& all) { CHECK(all.grant(2)); }},
      {"granted, idle", admitted},
      {"granted, in use", used},
      {"half on the way back",
       [=](TwoParties& all) {
         used(all);
         all.revoke(2, all.serving);
         CHECK(all.tenant->look().ok());
       }},
      {"left, not swept",
       [=](TwoParties& all) {
         used(all);
         all.revoke(3, kNobody);
         all.free_all();
       }},
      {"given back, not swept",
       [=](TwoParties& all) {
         used(all);
         CHECK(all.tenant->give_idle().ok());
       }},
      {"late",
       [=](TwoParties& all) {
         used(all);
         all.revoke(3, all.serving);
         all.clock->advance(2 * kSecond);
       }},
      {"in quarantine",
       [=](TwoParties& all) {
         used(all);
         all.revoke(3, all.serving);
         all.clock->advance(2 * kSecond);
         CHECK(all.arbiter->poll(all.revocation).ok());
       }},
      {"serving has its share",
       [=](TwoParties& all) {
         CHECK(all.arbiter->take(all.serving, 2).ok());
         CHECK(all.grant(2));
         CHECK(all.tenant->look().ok());
         CHECK(all.alloc(1));
       }},
  };
}

Steps arbiter_moves() {
  return {
      {"grant", [](TwoParties& all) { all.grant(1); }},
      {"revoke for serving", [](TwoParties& all) { all.revoke(3, all.serving); }},
      {"revoke for nobody", [](TwoParties& all) { all.revoke(1, kNobody); }},
      {"sweep", [](TwoParties& all) { CHECK(all.arbiter->sweep(all.rollout).ok()); }},
      {"expire", [](TwoParties& all) { CHECK(all.arbiter->expire(kSecond).ok()); }},
      {"take", [](TwoParties& all) { CHECK(all.arbiter->take(all.serving, 4).ok()); }},
      {"give back", [](TwoParties& all) { CHECK(all.arbiter->give_back(all.serving, 4).ok()); }},
      {"drop", [](TwoParties& all) { CHECK(all.arbiter->drop_partition(all.rollout).ok()); }},
  };
}

Steps tenant_moves() {
  return {
      {"look", [](TwoParties& all) { CHECK(all.tenant->look().ok()); }},
      {"alloc", [](TwoParties& all) { all.alloc(2); }},
      {"free", [](TwoParties& all) { all.free_all(); }},
      {"churn",
       [](TwoParties& all) {
         if (all.alloc(4)) all.free_all();
       }},
      {"give back", [](TwoParties& all) { CHECK(all.tenant->give_idle().ok()); }},
      {"beat", [](TwoParties& all) { all.tenant->beat(7); }},
      {"close", [](TwoParties& all) { CHECK(all.tenant->close().ok()); }},
  };
}

std::set<SlabId> slabs_of(const Arbiter& arbiter, PartitionId id) {
  const LedgerView view = LedgerView::open(arbiter.share_ledger().take()).take();
  CHECK(view.audit().ok());
  const std::vector<SlabRecord> records = view.read().take().slabs;
  std::set<SlabId> owned;
  for (std::size_t slab = 0; slab < records.size(); ++slab) {
    if (records[slab].owner == id) owned.insert(static_cast<SlabId>(slab));
  }
  return owned;
}

// What the tenant has, and what it can still get, are slabs that the arbiter knows as its own.
void check_tenant_has_only_its_own(TwoParties& all, const Arbiter& arbiter) {
  while (all.alloc(1)) {
  }
  const std::set<SlabId> owned = slabs_of(arbiter, all.rollout);
  for (const BlockId block : all.held) CHECK(owned.contains(all.blocks->grid().slab_at(block)));
}

// Ids from before name nothing in a slab that the successor took away.
void check_generations_moved_on(const TwoParties& all, const Arbiter& heir) {
  const std::vector<SlabRecord> before = all.ledger.read_torn().slabs;
  const LedgerView view = LedgerView::open(heir.share_ledger().take()).take();
  const std::vector<SlabRecord> after = view.read().take().slabs;
  for (std::size_t slab = 0; slab < before.size(); ++slab) {
    const bool was_taken = before[slab].owner != kNobody && after[slab].owner == kNobody;
    if (was_taken) CHECK(after[slab].generation > before[slab].generation);
  }
}

// The tenant lives: a successor adopts it, and in the end serving can have every slab.
void survive_arbiter(TwoParties& all) {
  std::vector<Survivor> survivors;
  survivors.push_back({all.rollout, duplicate_fd(all.line->mailbox.fd()).take()});
  Result<std::unique_ptr<Arbiter>> made = Arbiter::adopt(all.pool_again(), all.ledger, survivors,
                                                         60 * kSecond, kSecond, all.clock, nullptr);
  CHECK_EQ(made.status().message(), std::string{});
  const std::unique_ptr<Arbiter> heir = made.take();
  CHECK(heir->check_invariants().ok());
  check_generations_moved_on(all, *heir);
  const PartitionId serving = heir->add_partition("serving", 1, 4).take();
  CHECK_EQ(heir->take(serving, 1).take().size(), 1);  // its reserve, at once
  check_tenant_has_only_its_own(all, *heir);
  // Of a partition that was dropped nothing is lent, and the revocation is over at once.
  const Result<RevocationId> id =
      heir->revoke(all.rollout, 4, all.clock->now_ns() + kSecond, serving, {});
  CHECK(id.ok());
  CHECK(all.tenant->look().ok());
  all.free_all();
  CHECK(heir->sweep(all.rollout).ok());
  CHECK_EQ(heir->poll(id.value()).take().pending, 0);
  CHECK(heir->take(serving, 4).ok());
  CHECK(heir->check_invariants().ok());
  CHECK_EQ(slabs_of(*heir, serving).size(), 4);
}

// The arbiter lives: first it does not know, then it learns that the process is gone.
void survive_tenant(TwoParties& all) {
  CHECK(all.arbiter->sweep(all.rollout).ok());
  CHECK(all.arbiter->check_invariants().ok());
  CHECK(!all.arbiter->take(all.serving, 1).take().empty() ||
        !slabs_of(*all.arbiter, all.serving).empty());
  CHECK(all.arbiter->lose_tenant(all.rollout).ok());
  CHECK(all.arbiter->check_invariants().ok());
  CHECK(slabs_of(*all.arbiter, all.rollout).empty());
  CHECK(all.arbiter->take(all.serving, 4).ok());
  CHECK_EQ(slabs_of(*all.arbiter, all.serving).size(), 4);
}

// Returns how many crashes there were.
int explore(const Steps& moves, void (*survive)(TwoParties&)) {
  int crashes = 0;
  for (const Step& state : states()) {
    for (const Step& move : moves) {
      std::printf("  %s: %s\n", state.name, move.name);  // the last one is where it fails
      bool is_cut_off = kCanCrash;
      for (int store = 1; is_cut_off; ++store) {
        TwoParties all;
        state.act(all);
        is_cut_off = crashes_after(store, [&] { move.act(all); });
        // Done to the end is one more way to die: right after.
        survive(all);
        crashes += is_cut_off ? 1 : 0;
      }
    }
  }
  std::printf("  %d crashes\n", crashes);
  return crashes;
}

}  // namespace

TEST(tenant_and_serving_survive_the_arbiter_wherever_it_dies) {
  CHECK(explore(arbiter_moves(), survive_arbiter) > 500 || !kCanCrash);
}

TEST(serving_survives_the_tenant_wherever_it_dies) {
  CHECK(explore(tenant_moves(), survive_tenant) > 100 || !kCanCrash);
}

TEST_MAIN()
