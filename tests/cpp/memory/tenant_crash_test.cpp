// Either party dies after every single store to shared memory, in every state of a loan. Serving
// must find no slab with two owners, and have its memory; a tenant must be able to release
// everything.
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

// State of a loan when the party starts the operation that it will not finish.
Steps states() {
  const auto admitted = [](TwoParties& all) {
    CHECK(all.grant(3));
    CHECK(all.tenant->look().ok());
  };
  const auto used = [=](TwoParties& all) {
    admitted(all);
    CHECK(all.alloc(5));  // one slab full, one partly used, one idle
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

// The arbiter is dead. The tenant uses only slabs that its words show as in use, and can release
// all of them.
void survive_arbiter(TwoParties& all) {
  CHECK(all.tenant->look().ok());
  while (all.alloc(1)) {
  }
  for (const BlockId block : all.held) {
    const WordUse use = all.line->mailbox.word(all.blocks->grid().slab_at(block)).use;
    CHECK(use == WordUse::kBusy || use == WordUse::kClosed);
  }
  all.free_all();
  CHECK(all.tenant->close().ok());
  CHECK(!all.alloc(1));
  for (SlabId slab = 0; slab < TwoParties::kShape.slab_count; ++slab) {
    CHECK(all.line->mailbox.word(slab).use == WordUse::kAbsent);
  }
}

// The arbiter lives: first it knows nothing, then it learns of the process's end.
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
      std::printf("  %s: %s\n", state.name, move.name);  // the last one does not crash
      bool is_cut_off = kCanCrash;
      for (int store = 1; is_cut_off; ++store) {
        TwoParties all;
        state.act(all);
        is_cut_off = crashes_after(store, [&] { move.act(all); });
        // A crash right after the end is one more case.
        survive(all);
        crashes += is_cut_off ? 1 : 0;
      }
    }
  }
  std::printf("  %d crashes\n", crashes);
  return crashes;
}

}  // namespace

TEST(tenant_survives_the_arbiter_wherever_it_dies) {
  CHECK(explore(arbiter_moves(), survive_arbiter) > 500 || !kCanCrash);
}

TEST(serving_survives_the_tenant_wherever_it_dies) {
  CHECK(explore(tenant_moves(), survive_tenant) > 100 || !kCanCrash);
}
