// A shelf: stored frames, waiting requests, and single notifications.
#include "transfer/chunk_shelf.h"

#include <thread>

#include "chunk_rig.h"

using namespace rose::transfer;
using rose::Code;
using rose::EventFd;
using rose::test::frame_of;
using rose::test::kLongNs;
using rose::test::shared;

namespace {

std::unique_ptr<ChunkShelf> make_shelf() {
  return std::make_unique<ChunkShelf>(EventFd::create().take());
}

std::size_t size_of(const ShelfAnswer& answer) { return answer.frame.bytes.size(); }

}  // namespace

TEST(a_frame_is_kept_until_its_update_is_forgotten) {
  const auto shelf = make_shelf();
  for (std::uint32_t tile : {0U, 5U, 0xFFFF'FFFFU}) {
    CHECK(shelf->put({2, 1, tile}, shared(frame_of(10 + tile % 7, tile))).ok());
  }
  CHECK(shelf->put({2, -1, 5}, shared(frame_of(99, 1))).ok());
  CHECK_EQ(size_of(shelf->look({2, 1, 5}, false)), 15);
  shelf->count_sent({2, 1, 5}, 15);
  shelf->count_sent({2, -1, 5}, 99);
  CHECK_EQ(shelf->sent_bytes(2, 1), 15);
  CHECK_EQ(shelf->forget(2, 1), 15);
  CHECK(shelf->look({2, 1, 0}, false).state == Shelved::kAbsent);
  CHECK(shelf->look({2, 1, 0xFFFF'FFFFU}, false).state == Shelved::kAbsent);
  CHECK_EQ(size_of(shelf->look({2, -1, 5}, false)), 99);
  shelf->count_sent({2, 1, 5}, 15);  // a frame that was being fetched
  CHECK_EQ(shelf->sent_bytes(2, 1), 0);
  CHECK_EQ(shelf->sent_bytes(), 15 + 99 + 15);
}

TEST(what_no_frame_can_be_is_refused) {
  const auto shelf = make_shelf();
  CHECK(shelf->put({2, 1, 0}, shared({})).code() == Code::kInvalidArgument);
  CHECK(shelf->put({2, 2, 0}, shared(frame_of(1, 1))).code() == Code::kInvalidArgument);
  const auto large = shared(frame_of(kFrameBytesMax + 1, 1));
  CHECK(shelf->put({2, 1, 0}, large).code() == Code::kInvalidArgument);
  CHECK(shelf->give({2, 1, 0}, large).status().code() == Code::kInvalidArgument);
}

TEST(a_frame_lives_as_long_as_somebody_sends_it) {
  const auto shelf = make_shelf();
  auto owner = std::make_shared<int>(1);
  const auto content = frame_of(4, 1);
  CHECK(shelf->put({2, 1, 0}, {content, owner}).ok());
  {
    const ShelfAnswer sent = shelf->look({2, 1, 0}, false);
    shelf->forget(2, 1);
    CHECK_EQ(owner.use_count(), 2);
  }
  CHECK_EQ(owner.use_count(), 1);
  CHECK(shelf->put({2, 1, 0}, {content, owner}).ok());
  CHECK(shelf->put({2, 1, 0}, shared(content)).ok());
  CHECK_EQ(owner.use_count(), 1);
}

TEST(each_miss_is_handed_out_once_while_somebody_waits) {
  const auto shelf = make_shelf();
  const ChunkKey one{2, 1, 0}, two{2, 1, 1};
  CHECK(shelf->look(one, true).state == Shelved::kWaiting);
  CHECK(shelf->look(one, true).state == Shelved::kWaiting);
  CHECK(shelf->look(two, true).state == Shelved::kWaiting);
  CHECK((shelf->take_misses(0, 1) == std::vector{one}));
  CHECK((shelf->take_misses(0, 9) == std::vector{two}));
  CHECK(shelf->take_misses(0, 9).empty());
  shelf->leave(one);
  CHECK(shelf->look(one, true).state == Shelved::kWaiting);
  CHECK(shelf->take_misses(0, 9).empty());  // the other request still waits
  shelf->leave(one);
  shelf->leave(one);
  CHECK(shelf->look(one, true).state == Shelved::kWaiting);  // anew
  CHECK((shelf->take_misses(0, 9) == std::vector{one}));
}

TEST(who_waits_is_answered_by_a_frame_that_is_put_given_or_refused) {
  const auto shelf = make_shelf();
  for (std::uint32_t tile = 0; tile < 3; ++tile) shelf->look({2, 1, tile}, true);
  CHECK(shelf->settle({2, 1, 0}).state == Shelved::kWaiting);
  CHECK(shelf->put({2, 1, 0}, shared(frame_of(7, 1))).ok());
  CHECK_EQ(shelf->give({2, 1, 1}, shared(frame_of(8, 1))).take(), 1);
  shelf->refuse({2, 1, 2});
  CHECK(shelf->take_misses(0, 9).empty());  // they arrived before anybody was notified
  CHECK_EQ(size_of(shelf->settle({2, 1, 0})), 7);
  CHECK_EQ(size_of(shelf->settle({2, 1, 1})), 8);
  CHECK(shelf->settle({2, 1, 2}).state == Shelved::kAbsent);
  CHECK(shelf->look({2, 1, 0}, true).state == Shelved::kKept);
  CHECK(shelf->look({2, 1, 1}, true).state == Shelved::kWaiting);  // it was not kept
  CHECK(shelf->look({2, 1, 2}, true).state == Shelved::kWaiting);  // it may exist by now
  CHECK_EQ(shelf->give({9, 1, 1}, shared(frame_of(8, 1))).take(), 0);
  shelf->refuse({9, 1, 1});  // no request for it
}

TEST(a_wait_for_misses_ends_with_one_and_with_the_shelf) {
  const auto shelf = make_shelf();
  std::thread asker{[&] { shelf->look({2, 1, 4}, true); }};
  CHECK((shelf->take_misses(kLongNs, 9) == std::vector{ChunkKey{2, 1, 4}}));
  asker.join();
  std::thread closer{[&] { shelf->close(); }};
  CHECK(shelf->take_misses(kLongNs, 9).empty());
  closer.join();
  CHECK(shelf->look({2, 1, 5}, true).state == Shelved::kAbsent);
}
