#include "scheduler/caches.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "check.h"
#include "scheduler/image.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

TEST(the_least_lately_used_are_forgotten_first_and_no_more_than_must_be) {
  Caches caches;
  const CacheId first = caches.put(10);
  const CacheId second = caches.put(20);
  const CacheId third = caches.put(30);
  caches.shrink_to(55);
  CHECK(!caches.has(first));
  CHECK_EQ(caches.tokens(), 50);
  caches.shrink_to(50);
  CHECK(caches.has(second) && caches.has(third));
  caches.shrink_to(49);
  CHECK(!caches.has(second));
  CHECK_EQ(caches.count(), 1);
  caches.shrink_to(-1);
  CHECK_EQ(caches.count(), 0);
  CHECK_EQ(caches.tokens(), 0);
}

TEST(an_id_is_never_given_twice) {
  Caches caches;
  const CacheId gone = caches.put(10);
  caches.clear();
  CHECK(caches.put(5) != gone);
  CHECK(!caches.has(gone));
  caches.remove(gone);
  CHECK_EQ(caches.tokens(), 5);
}

TEST(what_is_removed_counts_no_more) {
  Caches caches;
  const CacheId one = caches.put(10);
  const CacheId other = caches.put(20);
  caches.remove(one);
  caches.remove(one);
  CHECK_EQ(caches.tokens(), 20);
  CHECK_EQ(caches.tokens_of(one), 0);
  CHECK_EQ(caches.tokens_of(other), 20);
  CHECK(!caches.has(kNoCache));
}

TEST(an_image_that_contradicts_itself_is_not_sound) {
  Caches caches;
  caches.put(10);
  caches.put(20);
  CHECK(caches.is_sound());
  std::vector<std::byte> bytes;
  ImageWriter{bytes}(caches);
  // Size, then id and tokens of each, the last id, the sum.
  for (const std::size_t number : {1, 2, 3, 4, 5, 6}) {
    std::vector<std::byte> bad = bytes;
    bad[8 * number] = std::byte{0};
    Caches read;
    ImageReader{bad}(read);
    CHECK(!read.is_sound());
  }
}

}  // namespace
