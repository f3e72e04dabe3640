// The CRC-32 of zlib, continued from an earlier value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rose {

namespace crc32_detail {

// kTables[k][x] is the effect of byte x on the checksum after k further bytes. With these tables
// 16 bytes are added at once: the checksum is the most expensive part of appending a record.
inline constexpr std::size_t kAtOnce = 16;
inline constexpr std::array<std::array<std::uint32_t, 256>, kAtOnce> kTables = [] {
  std::array<std::array<std::uint32_t, 256>, kAtOnce> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][i] = crc;
  }
  for (std::size_t k = 1; k < kAtOnce; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}();

// Adds kBytes bytes, a multiple of four.
template <std::size_t kBytes>
std::uint32_t add(const std::byte* bytes, std::uint32_t crc) noexcept {
  std::array<std::uint32_t, kBytes / 4> words;
  std::memcpy(words.data(), bytes, kBytes);
  words[0] ^= crc;
  std::uint32_t sum = 0;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kBytes; ++i) {
    sum ^= kTables[kBytes - 1 - i][(words[i / 4] >> (i % 4 * 8)) & 0xFF];
  }
  return sum;
}

}  // namespace crc32_detail

inline std::uint32_t crc32(const std::byte* bytes, std::size_t count, std::uint32_t crc) noexcept {
  using crc32_detail::kAtOnce;
  crc = ~crc;
  for (; count >= kAtOnce; bytes += kAtOnce, count -= kAtOnce) {
    crc = crc32_detail::add<kAtOnce>(bytes, crc);
  }
  for (; count >= 4; bytes += 4, count -= 4) crc = crc32_detail::add<4>(bytes, crc);
  for (; count > 0; ++bytes, --count) {
    crc = (crc >> 8) ^
          crc32_detail::kTables[0][(crc ^ std::to_integer<std::uint32_t>(*bytes)) & 0xFF];
  }
  return ~crc;
}

}  // namespace rose
