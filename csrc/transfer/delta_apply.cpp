#include "transfer/delta_apply.h"

#include <string>

#include "transfer/block_reader.h"
#include "transfer/delta_check.h"

namespace rose::transfer {

namespace {

// Also writes the elements that stay: to branch on each of them would cost more.
void apply_raw(const BlockView& block, std::uint16_t* weights) noexcept {
  for (std::uint32_t i = 0; i < block.elements; ++i) {
    weights[i] = static_cast<std::uint16_t>(weights[i] ^ raw_xor(block, i));
  }
}

}  // namespace

Status delta_apply(std::span<std::uint16_t> weights, const DeltaView& delta, bool undo) noexcept {
  if (weights.size() != delta.count) {
    return Status::invalid_argument("weights have " + std::to_string(weights.size()) +
                                    " elements, the delta " + std::to_string(delta.count));
  }
  ROSE_TRY(check_delta(delta));
  auto positions = Buffer<std::uint16_t>::create(kBlockElementsMax);
  if (!positions.ok()) return positions.status();
  for_each_block(delta, [&](const BlockView& block) noexcept {
    std::uint16_t* const first = weights.data() + block.first;
    if (block.entry.kind == Kind::kRaw) {
      apply_raw(block, first);
    } else if (block.entry.kind == Kind::kGap) {
      const GapReader reader{block, positions.value().data()};
      reader.change(
          [first](std::uint32_t, std::uint32_t position) noexcept -> std::uint16_t& {
            return first[position];
          },
          undo);
    }
  });
  return {};
}

}  // namespace rose::transfer
