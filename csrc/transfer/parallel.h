// Runs work on several threads and joins them all before it returns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace rose::transfer {

// Returns the index of the first item of part `part`, if `size` items are split into `parts` parts.
constexpr std::uint64_t part_border(std::uint64_t size, std::uint64_t part,
                                    std::uint64_t parts) noexcept {
  return size / parts * part + std::min(part, size % parts);
}

// Calls work(part) for each part from 0 to parts - 1, concurrently if the system provides threads.
// The caller's thread does the first part, and the parts for which no thread could be started.
template <typename Work>
void for_each_part(std::uint32_t parts, const Work& work) noexcept {
  std::vector<std::thread> others;
  std::uint32_t started = 1;
  try {
    others.reserve(parts);
    for (; started < parts; ++started) {
      others.emplace_back([&work, started]() noexcept { work(started); });
    }
  } catch (const std::system_error&) {
    // Without further threads the caller does the rest.
  } catch (const std::bad_alloc&) {
  }
  work(0U);
  for (std::uint32_t part = started; part < parts; ++part) work(part);
  for (std::thread& other : others) other.join();
}

}  // namespace rose::transfer
