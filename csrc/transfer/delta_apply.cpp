#include "transfer/delta_apply.h"

#include <array>
#include <cstring>
#include <string>

#include "transfer/delta_check.h"
#include "transfer/digest.h"

namespace rose::transfer {

namespace {

// Adds the differences of a RAW block, or subtracts them if `is_undone`. Writes all elements,
// changed or not, because a branch per element would cost more.
template <ElementBits T>
void add_raw(const BlockView& block, T* weights, bool is_undone) noexcept {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block.words);
  for (std::uint32_t i = 0; i < block.elements; ++i) {
    T difference = 0;
    std::memcpy(&difference, bytes + sizeof(T) * i, sizeof(T));
    const T by = is_undone ? static_cast<T>(0U - difference) : difference;
    weights[i] = static_cast<T>(weights[i] + by);
  }
}

// Adds the differences to the elements at(position), or subtracts them if `is_undone`.
template <ElementBits T, typename At>
void add_changes(const BlockChanges<T>& changes, bool is_undone, At at) noexcept {
  for (std::uint32_t i = 0; i < changes.changed; ++i) {
    T& element = at(changes.positions[i]);
    const T by = changes.differences[i];
    element = static_cast<T>(is_undone ? element - by : element + by);
  }
}

// Reads the 8-byte words that a block changes, and computes the effect on both sums of the digest.
template <ElementBits T>
class WordReader {
 public:
  WordReader(const Box<const T>& weights, bool is_undone) noexcept
      : cursor_{weights}, is_undone_{is_undone} {}

  void add(const BlockView& block, const BlockChanges<T>& changes, Digest& difference) noexcept {
    std::uint32_t i = 0;
    while (i < changes.changed) {
      const std::uint32_t word = changes.positions[i] / kInWord;
      const std::uint32_t at = word * kInWord;
      const std::uint32_t elements = std::min<std::uint32_t>(kInWord, block.elements - at);
      std::array<T, kInWord> lanes{};
      for (std::uint32_t lane = 0; lane < elements; ++lane) {
        lanes[lane] = cursor_.at(block.first + at + lane);
      }
      const std::array<T, kInWord> before = lanes;
      for (; i < changes.changed && changes.positions[i] / kInWord == word; ++i) {
        T& lane = lanes[changes.positions[i] % kInWord];
        const T by = changes.differences[i];
        lane = static_cast<T>(is_undone_ ? lane - by : lane + by);
      }
      const std::uint64_t index = block.first / kInWord + word;
      Digest old_part;
      Digest new_part;
      add_words_portable(before.data(), 1, index, 0, old_part);
      add_words_portable(lanes.data(), 1, index, 0, new_part);
      difference.first += new_part.first - old_part.first;
      difference.second += new_part.second - old_part.second;
    }
  }

 private:
  static constexpr std::uint32_t kInWord = 8 / sizeof(T);

  BoxCursor<const T> cursor_;
  bool is_undone_;
};

}  // namespace

template <ElementBits T>
Status check_fit(const char* name, const Box<const T>& weights, const DeltaView& delta) noexcept {
  if (kWidth<T> != delta.width) {
    return Status::invalid_argument(std::string{name} + " has elements of " +
                                    std::to_string(kWidth<T>) + " bits, the delta of " +
                                    std::to_string(delta.width) + ": they must be equal");
  }
  if (weights.count() != delta.count) {
    return Status::invalid_argument(std::string{name} + " has " + std::to_string(weights.count()) +
                                    " elements, the delta " + std::to_string(delta.count) +
                                    ": they must be equal");
  }
  return {};
}

template <ElementBits T>
Status delta_apply(const Box<T>& weights, const DeltaView& delta,
                   const ApplyOptions& options) noexcept {
  ROSE_TRY(check_fit<T>("weights", weights, delta));
  if (weights.shape.may_overlap_itself()) {
    return Status::invalid_argument("weights has elements that share memory: pass a copy");
  }
  if (!options.is_checked) ROSE_TRY(check_delta(delta));
  auto room = ChangesRoom<T>::create(kBlockElementsMax);
  if (!room.ok()) return room.status();
  BoxCursor<T> cursor{weights};
  for_each_block(delta, [&](const BlockView& block) noexcept {
    T* const first = weights.data + block.first;
    if (!weights.is_row()) {
      add_changes(
          room.value().read(block), options.is_undone,
          [&](std::uint16_t position) noexcept -> T& { return cursor.at(block.first + position); });
    } else if (block.entry.kind == Kind::kRaw) {
      add_raw(block, first, options.is_undone);
    } else {
      add_changes(room.value().read(block), options.is_undone,
                  [first](std::uint16_t position) noexcept -> T& { return first[position]; });
    }
  });
  return {};
}

template <ElementBits T>
Status delta_verify(const Box<const T>& weights, const DeltaView& delta, const Digest& base,
                    const Digest& result, bool is_undone) noexcept {
  ROSE_TRY(check_fit("weights", weights, delta));
  ROSE_TRY(check_delta(delta));
  auto room = ChangesRoom<T>::create(kBlockElementsMax);
  if (!room.ok()) return room.status();
  WordReader<T> reader{weights, is_undone};
  Digest found;
  for_each_block(delta, [&](const BlockView& block) noexcept {
    reader.add(block, room.value().read(block), found);
  });
  const Digest& from = is_undone ? result : base;
  const Digest& to = is_undone ? base : result;
  if (found == Digest{to.first - from.first, to.second - from.second}) return {};
  return Status::corrupt(is_undone
                             ? "the weights are not the result of the delta: nothing was undone"
                             : "the weights are not the base of the delta: nothing "
                               "was applied");
}

#define ROSE_DELTA_APPLY(T)                                                                   \
  template Status check_fit(const char*, const Box<const T>&, const DeltaView&) noexcept;     \
  template Status delta_apply(const Box<T>&, const DeltaView&, const ApplyOptions&) noexcept; \
  template Status delta_verify(const Box<const T>&, const DeltaView&, const Digest&,          \
                               const Digest&, bool) noexcept;
ROSE_DELTA_APPLY(std::uint8_t)
ROSE_DELTA_APPLY(std::uint16_t)
ROSE_DELTA_APPLY(std::uint32_t)
#undef ROSE_DELTA_APPLY

}  // namespace rose::transfer
