#include "transfer/delta_merge.h"

#include <cstring>
#include <string>
#include <utility>

#include "transfer/block_reader.h"
#include "transfer/block_writer.h"
#include "transfer/delta_check.h"

namespace rose::transfer {

namespace {

// Adds two lists of changes, and writes the sum to `room`. A sum of 0 is not a change.
template <ElementBits T>
BlockChanges<T> add_up(const BlockChanges<T>& one, const BlockChanges<T>& other,
                       const ChangesRoom<T>& room) noexcept {
  std::uint32_t changed = 0;
  const auto put = [&](std::uint16_t position, T difference) noexcept {
    room.positions()[changed] = position;
    room.differences()[changed] = difference;
    changed += difference != 0 ? 1 : 0;
  };
  std::uint32_t i = 0;
  std::uint32_t j = 0;
  while (i < one.changed && j < other.changed) {
    const std::uint16_t a = one.positions[i];
    const std::uint16_t b = other.positions[j];
    const T from_one = a <= b ? one.differences[i] : T{0};
    const T from_other = b <= a ? other.differences[j] : T{0};
    put(std::min(a, b), static_cast<T>(from_one + from_other));
    i += a <= b ? 1 : 0;
    j += b <= a ? 1 : 0;
  }
  for (; i < one.changed; ++i) put(one.positions[i], one.differences[i]);
  for (; j < other.changed; ++j) put(other.positions[j], other.differences[j]);
  return {.elements = one.elements,
          .changed = changed,
          .positions = room.positions(),
          .differences = room.differences()};
}

// Iterates over the blocks of a delta.
class BlockWalk {
 public:
  explicit BlockWalk(const DeltaView& delta) noexcept
      : delta_{&delta}, words_{delta.payload.data()} {}

  BlockView next() noexcept {
    const std::uint64_t first = block_ * delta_->block_elements;
    const BlockView view{
        .first = first,
        .elements = elements_of_block(delta_->count, first, delta_->block_elements),
        .entry = Entry::decode(delta_->entries[block_++]),
        .words = words_};
    words_ += view.entry.words;
    return view;
  }

 private:
  const DeltaView* delta_;
  const std::uint32_t* words_;
  std::uint64_t block_{0};
};

// Upper bound of the merged payload's words. A block that only one delta changes is copied.
std::uint64_t words_max(const DeltaView& first, const DeltaView& second) noexcept {
  std::uint64_t words = 0;
  BlockWalk one{first};
  BlockWalk other{second};
  for (std::size_t block = 0; block < first.entries.size(); ++block) {
    const BlockView a = one.next();
    const BlockView b = other.next();
    const bool are_both = a.entry.words != 0 && b.entry.words != 0;
    words += are_both ? raw_words(a.elements, first.width) : a.entry.words + b.entry.words;
  }
  return words;
}

template <ElementBits T>
class Merger {
 public:
  static Result<Merger> create() noexcept {
    Merger merger;
    for (ChangesRoom<T>* const room : {&merger.one_, &merger.other_, &merger.sum_}) {
      auto made = ChangesRoom<T>::create(kBlockElementsMax);
      if (!made.ok()) return made.status();
      *room = made.take();
    }
    auto scratch = EncodeScratch::create(kBlockElementsMax, best_isa());
    if (!scratch.ok()) return scratch.status();
    merger.scratch_ = scratch.take();
    return merger;
  }

  Entry merge(const BlockView& one, const BlockView& other, std::uint32_t* out) const noexcept {
    if (one.entry.words == 0 || other.entry.words == 0) {
      const BlockView& only = one.entry.words == 0 ? other : one;
      if (only.entry.words != 0) std::memcpy(out, only.words, only.entry.words * sizeof *out);
      return only.entry;
    }
    return encode_block(add_up(one_.read(one), other_.read(other), sum_), scratch_, out);
  }

 private:
  ChangesRoom<T> one_;
  ChangesRoom<T> other_;
  ChangesRoom<T> sum_;
  EncodeScratch scratch_;
};

template <ElementBits T>
Result<MergedDelta> merge_as(const DeltaView& first, const DeltaView& second) noexcept {
  auto merger = Merger<T>::create();
  if (!merger.ok()) return merger.status();
  auto entries = Buffer<std::uint64_t>::create(first.entries.size());
  if (!entries.ok()) return entries.status();
  auto payload = Buffer<std::uint32_t>::create(words_max(first, second));
  if (!payload.ok()) return payload.status();
  MergedDelta merged{.entries = entries.take(), .payload = payload.take()};
  std::uint64_t words = 0;
  BlockWalk one{first};
  BlockWalk other{second};
  for (std::size_t block = 0; block < first.entries.size(); ++block) {
    const Entry entry =
        merger.value().merge(one.next(), other.next(), merged.payload.data() + words);
    merged.entries[block] = entry.encode();
    words += entry.words;
  }
  merged.payload.shrink(words);
  return merged;
}

}  // namespace

Result<MergedDelta> delta_merge(const DeltaView& first, const DeltaView& second) noexcept {
  if (first.count != second.count || first.width != second.width) {
    return Status::invalid_argument("the first delta has " + std::to_string(first.count) +
                                    " elements of " + std::to_string(first.width) +
                                    " bits, the second " + std::to_string(second.count) + " of " +
                                    std::to_string(second.width) + ": they must be equal");
  }
  if (first.block_elements != second.block_elements) {
    return Status::invalid_argument(
        "the first delta has blocks of " + std::to_string(first.block_elements) +
        " elements, the second of " + std::to_string(second.block_elements) +
        ": pack both with the same block_elements");
  }
  ROSE_TRY(check_delta(first));
  ROSE_TRY(check_delta(second));
  return with_width(first.width, [&](auto element) noexcept {
    return merge_as<decltype(element)>(first, second);
  });
}

}  // namespace rose::transfer
