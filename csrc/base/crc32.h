// The CRC-32 of zlib, continued from an earlier value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rose {

namespace crc32_detail {

// kTables[k][x] is the effect of byte x on the checksum after k further bytes. With these tables
// eight bytes are added at once: the checksum is the most expensive part of appending a record.
inline constexpr std::size_t kAtOnce = 8;
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

}  // namespace crc32_detail

inline std::uint32_t crc32(const std::byte* bytes, std::size_t count, std::uint32_t crc) noexcept {
  using crc32_detail::kAtOnce;
  using crc32_detail::kTables;
  crc = ~crc;
  for (; count >= kAtOnce; bytes += kAtOnce, count -= kAtOnce) {
    std::array<std::uint32_t, 2> words;
    std::memcpy(words.data(), bytes, sizeof words);
    const std::uint32_t low = words[0] ^ crc;
    const std::uint32_t high = words[1];
    crc = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xFF] ^ kTables[2][(high >> 8) & 0xFF] ^
          kTables[1][(high >> 16) & 0xFF] ^ kTables[0][high >> 24];
  }
  for (; count > 0; ++bytes, --count) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*bytes)) & 0xFF];
  }
  return ~crc;
}

}  // namespace rose
