#include "sim/prefix_store.h"

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

TEST(who_takes_a_prefix_has_it_alone) {
  PrefixStore store;
  store.put(1, 100);
  CHECK_EQ(store.take(1), 100);
  CHECK_EQ(store.take(1), 0);
  CHECK_EQ(store.take(2), 0);
}

TEST(who_was_used_least_lately_is_forgotten_first) {
  PrefixStore store;
  store.put(1, 100);
  store.put(2, 100);
  store.put(3, 100);
  store.put(1, store.take(1));
  store.shrink_to(200);
  CHECK_EQ(store.take(2), 0);
  CHECK_EQ(store.take(3), 100);
  CHECK_EQ(store.take(1), 100);
}

TEST(what_is_taken_needs_no_room) {
  PrefixStore store;
  store.put(1, 100);
  store.put(2, 60);
  CHECK_EQ(store.take(1), 100);
  store.shrink_to(60);
  CHECK_EQ(store.take(2), 60);
}

TEST(nothing_is_kept_where_nothing_fits) {
  PrefixStore store;
  store.put(1, 1);
  store.shrink_to(0);
  CHECK_EQ(store.take(1), 0);
  store.put(2, 5);
  store.clear();
  CHECK_EQ(store.take(2), 0);
  store.put(3, 5);
  store.shrink_to(5);
  CHECK_EQ(store.take(3), 5);
}

}  // namespace
