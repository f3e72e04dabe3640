// The bytes of the chunk plane. docs/protocol.md, "Weights between processes".
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rose::transfer {

inline constexpr std::size_t kTokenBytes = 32;
// The secret that a peer must present before it learns anything.
using Token = std::array<std::byte, kTokenBytes>;

// Largest frame; a peer that announces more is invalid.
inline constexpr std::uint32_t kFrameBytesMax = 4U << 20;
// Maximum connections of one client.
inline constexpr std::uint32_t kStreamsMax = 64;

// One tile of an update: from version base_n (-1: from nothing) to version n.
struct ChunkKey {
  std::uint64_t n{0};
  std::int64_t base_n{-1};
  std::uint32_t tile{0};

  auto operator<=>(const ChunkKey&) const = default;
};

// True if `n` is a possible version number, and `base_n` is -1 or an older version.
bool is_update(std::uint64_t n, std::int64_t base_n) noexcept;

struct Greeting {
  Token token{};
  std::uint32_t stream{0};  // index of the connection in its client
};

struct ChunkAnswer {
  ChunkKey key;
  std::uint32_t nbytes{0};  // size of the frame that follows; 0: the frame is not kept
};

inline constexpr std::size_t kGreetingBytes = 48;
inline constexpr std::size_t kHelloBytes = 16;
inline constexpr std::size_t kAskBytes = 32;
inline constexpr std::size_t kAnswerBytes = 32;

std::array<std::byte, kGreetingBytes> pack(const Greeting& greeting) noexcept;
std::array<std::byte, kHelloBytes> pack_hello() noexcept;
std::array<std::byte, kAskBytes> pack(const ChunkKey& ask) noexcept;
std::array<std::byte, kAnswerBytes> pack(const ChunkAnswer& answer) noexcept;

// Each function parses untrusted bytes, and returns nothing, or false, if any field is invalid.
std::optional<Greeting> read_greeting(std::span<const std::byte, kGreetingBytes> content) noexcept;
bool is_hello(std::span<const std::byte, kHelloBytes> content) noexcept;
std::optional<ChunkKey> read_ask(std::span<const std::byte, kAskBytes> content) noexcept;
std::optional<ChunkAnswer> read_answer(std::span<const std::byte, kAnswerBytes> content) noexcept;

// Takes the same time whichever byte differs.
bool is_same(const Token& one, const Token& other) noexcept;

}  // namespace rose::transfer
