// The CRC-32 of zlib, continued from an earlier value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace rose::slo {

namespace crc32_detail {

inline constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    table[i] = crc;
  }
  return table;
}();

}  // namespace crc32_detail

inline std::uint32_t crc32(const std::byte* bytes, std::size_t count, std::uint32_t crc) noexcept {
  crc = ~crc;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t index = (crc ^ std::to_integer<std::uint32_t>(bytes[i])) & 0xFF;
    crc = (crc >> 8) ^ crc32_detail::kTable[index];
  }
  return ~crc;
}

}  // namespace rose::slo
