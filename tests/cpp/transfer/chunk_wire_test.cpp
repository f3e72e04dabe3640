// The bytes of the chunk plane: packed messages are read, and no others.
#include "transfer/chunk_wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "check.h"

using namespace rose::transfer;

namespace {

constexpr std::uint64_t kNewest = std::numeric_limits<std::int64_t>::max();

Token token_of(int first) {
  Token token;
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(first + int(i));
  return token;
}

std::vector<ChunkKey> sound_keys() {
  return {{0, -1, 0}, {1, 0, 7}, {300, 12, 1U << 31}, {kNewest, -1, 0xFFFF'FFFFU}};
}

// Reads `content` with each of its bits flipped; `reads` returns whether it was accepted.
template <std::size_t N, typename Reads>
std::size_t taken_when_flipped(std::array<std::byte, N> content, Reads reads) {
  std::size_t taken = 0;
  for (std::size_t bit = 0; bit < 8 * N; ++bit) {
    content[bit / 8] ^= std::byte{1} << (bit % 8);
    taken += reads(content);
    content[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  return taken;
}

}  // namespace

TEST(what_is_packed_is_read_again) {
  const auto greeting = read_greeting(pack(Greeting{token_of(3), 63}));
  CHECK(greeting && greeting->token == token_of(3) && greeting->stream == 63);
  CHECK(is_hello(pack_hello()));
  for (const ChunkKey& key : sound_keys()) {
    CHECK(read_ask(pack(key)) == key);
    for (const std::uint32_t nbytes : {0U, 1U, kFrameBytesMax}) {
      const auto answer = read_answer(pack(ChunkAnswer{key, nbytes}));
      CHECK(answer && answer->key == key && answer->nbytes == nbytes);
    }
  }
}

TEST(bytes_stand_where_the_protocol_says) {
  const auto ask = pack(ChunkKey{0x0102, -1, 0xA0B0});
  constexpr unsigned char kWant[kAskBytes] = {'R',  'A',  'S',  'K',  0,    0,    0,    0,  //
                                              0x02, 0x01, 0,    0,    0,    0,    0,    0,  //
                                              0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                              0xB0, 0xA0, 0,    0,    0,    0,    0,    0};
  CHECK(std::memcmp(ask.data(), kWant, sizeof(kWant)) == 0);
  const auto answer = pack(ChunkAnswer{{1, 0, 2}, 0x030405});
  constexpr unsigned char kAnswer[kAnswerBytes] = {'R', 'A', 'N', 'S', 1, 0, 0, 0,  //
                                                   1,   0,   0,   0,   0, 0, 0, 0,  //
                                                   0,   0,   0,   0,   0, 0, 0, 0,  //
                                                   2,   0,   0,   0,   5, 4, 3, 0};
  CHECK(std::memcmp(answer.data(), kAnswer, sizeof(kAnswer)) == 0);
}

// In fixed fields no bit may differ; tokens, keys and sizes may have other valid values.
TEST(no_bit_of_a_fixed_field_may_differ) {
  const auto hello = taken_when_flipped(pack_hello(), [](const auto& c) { return is_hello(c); });
  CHECK_EQ(hello, 0);
  const auto greeting = taken_when_flipped(
      pack(Greeting{token_of(3), 0}), [](const auto& c) { return read_greeting(c).has_value(); });
  CHECK_EQ(greeting, 8 * kTokenBytes + 6);  // and 64 streams
  // Of n, all bits but the sign and bit 2, which would make it lower than its base; of the base,
  // three bits.
  const auto ask = taken_when_flipped(pack(ChunkKey{4, 3, 0}),
                                      [](const auto& c) { return read_ask(c).has_value(); });
  CHECK_EQ(ask, 62 + 2 + 32);
}

TEST(answers_of_sizes_that_no_frame_has_are_refused) {
  const auto with = [](std::uint32_t is_kept, std::uint32_t nbytes) {
    auto content = pack(ChunkAnswer{{1, 0, 2}, 1});
    std::memcpy(content.data() + 4, &is_kept, sizeof(is_kept));
    std::memcpy(content.data() + 28, &nbytes, sizeof(nbytes));
    return read_answer(content).has_value();
  };
  CHECK(with(1, 1) && with(0, 0) && with(1, kFrameBytesMax));
  CHECK(!with(1, kFrameBytesMax + 1) && !with(1, 0xFFFF'FFFFU));
  CHECK(!with(1, 0) && !with(0, 1) && !with(2, 1));
}

TEST(updates_that_lead_nowhere_are_refused) {
  CHECK(is_update(0, -1) && is_update(1, 0) && is_update(kNewest, kNewest - 1));
  CHECK(!is_update(0, 0) && !is_update(3, 3) && !is_update(3, 4) && !is_update(3, -2));
  CHECK(!is_update(kNewest + 1, -1));
  for (const ChunkKey& key : {ChunkKey{3, 3, 0}, ChunkKey{3, -2, 0}, ChunkKey{kNewest + 1, 0, 0}}) {
    CHECK(!read_ask(pack(key)));
    CHECK(!read_answer(pack(ChunkAnswer{key, 1})));
  }
}

TEST(tokens_are_the_same_in_every_bit_or_not_at_all) {
  const Token token = token_of(9);
  CHECK(is_same(token, token));
  for (std::size_t bit = 0; bit < 8 * kTokenBytes; ++bit) {
    Token other = token;
    other[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK(!is_same(token, other));
  }
}
