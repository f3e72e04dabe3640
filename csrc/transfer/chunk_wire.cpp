#include "transfer/chunk_wire.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <string_view>

namespace rose::transfer {

namespace {

constexpr std::uint32_t kVersion = 2;
constexpr std::string_view kGreetingMagic = "ROSECHK2";
constexpr std::string_view kHelloMagic = "ROSEHEL2";
constexpr std::string_view kAskMagic = "RASK";
constexpr std::string_view kAnswerMagic = "RANS";

// Little-endian on every machine.
template <std::unsigned_integral T>
void put(std::span<std::byte> content, std::size_t at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    content[at + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <std::unsigned_integral T>
T get(std::span<const std::byte> content, std::size_t at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(content[at + i]) << (8 * i));
  }
  return value;
}

void put(std::span<std::byte> content, std::string_view magic) noexcept {
  std::ranges::transform(magic, content.begin(),
                         [](char letter) { return static_cast<std::byte>(letter); });
}

bool begins(std::span<const std::byte> content, std::string_view magic) noexcept {
  return std::ranges::equal(content.first(magic.size()), magic, {}, {},
                            [](char letter) { return static_cast<std::byte>(letter); });
}

void put(std::span<std::byte> content, const ChunkKey& key) noexcept {
  put(content, 8, key.n);
  put(content, 16, static_cast<std::uint64_t>(key.base_n));
  put(content, 24, key.tile);
}

ChunkKey get_key(std::span<const std::byte> content) noexcept {
  return {.n = get<std::uint64_t>(content, 8),
          .base_n = static_cast<std::int64_t>(get<std::uint64_t>(content, 16)),
          .tile = get<std::uint32_t>(content, 24)};
}

}  // namespace

bool is_update(std::uint64_t n, std::int64_t base_n) noexcept {
  if (n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
  return base_n >= -1 && base_n < static_cast<std::int64_t>(n);
}

std::array<std::byte, kGreetingBytes> pack(const Greeting& greeting) noexcept {
  std::array<std::byte, kGreetingBytes> content{};
  put(content, kGreetingMagic);
  put(content, 8, kVersion);
  put(content, 12, greeting.stream);
  std::ranges::copy(greeting.token, content.begin() + 16);
  return content;
}

std::optional<Greeting> read_greeting(std::span<const std::byte, kGreetingBytes> content) noexcept {
  Greeting greeting{.token = {}, .stream = get<std::uint32_t>(content, 12)};
  const bool is_sound = begins(content, kGreetingMagic) &&
                        get<std::uint32_t>(content, 8) == kVersion && greeting.stream < kStreamsMax;
  if (!is_sound) return std::nullopt;
  std::ranges::copy(content.subspan<16>(), greeting.token.begin());
  return greeting;
}

std::array<std::byte, kHelloBytes> pack_hello() noexcept {
  std::array<std::byte, kHelloBytes> content{};
  put(content, kHelloMagic);
  put(content, 8, kVersion);
  return content;
}

bool is_hello(std::span<const std::byte, kHelloBytes> content) noexcept {
  return begins(content, kHelloMagic) && get<std::uint32_t>(content, 8) == kVersion &&
         get<std::uint32_t>(content, 12) == 0;
}

std::array<std::byte, kAskBytes> pack(const ChunkKey& ask) noexcept {
  std::array<std::byte, kAskBytes> content{};
  put(content, kAskMagic);
  put(content, ask);
  return content;
}

std::optional<ChunkKey> read_ask(std::span<const std::byte, kAskBytes> content) noexcept {
  const ChunkKey key = get_key(content);
  const bool is_sound = begins(content, kAskMagic) && get<std::uint32_t>(content, 4) == 0 &&
                        get<std::uint32_t>(content, 28) == 0 && is_update(key.n, key.base_n);
  if (!is_sound) return std::nullopt;
  return key;
}

std::array<std::byte, kAnswerBytes> pack(const ChunkAnswer& answer) noexcept {
  std::array<std::byte, kAnswerBytes> content{};
  put(content, kAnswerMagic);
  put<std::uint32_t>(content, 4, answer.nbytes > 0);
  put(content, answer.key);
  put(content, 28, answer.nbytes);
  return content;
}

std::optional<ChunkAnswer> read_answer(std::span<const std::byte, kAnswerBytes> content) noexcept {
  const ChunkAnswer answer{.key = get_key(content), .nbytes = get<std::uint32_t>(content, 28)};
  const bool is_sound = begins(content, kAnswerMagic) && answer.nbytes <= kFrameBytesMax &&
                        get<std::uint32_t>(content, 4) == std::uint32_t{answer.nbytes > 0} &&
                        is_update(answer.key.n, answer.key.base_n);
  if (!is_sound) return std::nullopt;
  return answer;
}

bool is_same(const Token& one, const Token& other) noexcept {
  // Volatile, so that the compiler cannot make the loop end early.
  volatile unsigned char differing = 0;
  for (std::size_t i = 0; i < kTokenBytes; ++i) {
    differing =
        static_cast<unsigned char>(differing | static_cast<unsigned char>(one[i] ^ other[i]));
  }
  return differing == 0;
}

}  // namespace rose::transfer
