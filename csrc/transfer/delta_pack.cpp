#include "transfer/delta_pack.h"

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "transfer/block_writer.h"
#include "transfer/change_key.h"
#include "transfer/changes_finder.h"
#include "transfer/digest.h"
#include "transfer/parallel.h"
#include "transfer/payload_room.h"

namespace rose::transfer {

namespace {

constexpr std::uint64_t kThreadsMax = 256;

// True if the address ranges of two boxes overlap.
template <typename A, typename B>
bool may_touch(const Box<A>& one, const Box<B>& other) noexcept {
  const std::less<const void*> before;
  return before(one.data, other.data + other.shape.extent()) &&
         before(other.data, one.data + one.shape.extent());
}

template <ElementBits T>
Status check_ages(const Box<const T>& fresh, const Box<const T>& shadow,
                  const Ages& ages) noexcept {
  if (ages.counts.data == nullptr) return {};
  if (ages.counts.count() != fresh.count()) {
    return Status::invalid_argument("ages has " + std::to_string(ages.counts.count()) +
                                    " elements and new " + std::to_string(fresh.count()) +
                                    ": they must be equal");
  }
  if (ages.limit == 0 || ages.limit > 255) {
    return Status::invalid_argument("age_limit " + std::to_string(ages.limit) +
                                    ": choose 1 to 255");
  }
  if (ages.counts.shape.may_overlap_itself() || may_touch(ages.counts, fresh) ||
      may_touch(ages.counts, shadow)) {
    return Status::invalid_argument("ages shares memory with another array: pass a separate one");
  }
  return {};
}

// Upper bound of a payload's words: every block is RAW.
std::uint64_t payload_words_max(std::uint64_t count, std::uint32_t block_elements,
                                std::uint32_t width) noexcept {
  return count / block_elements * raw_words(block_elements, width) +
         raw_words(static_cast<std::uint32_t>(count % block_elements), width);
}

// The part of a pack that one thread does: consecutive blocks and their results.
template <ElementBits T>
class Part {
 public:
  static Result<Part> create(const Versions<T>& versions, const PackOptions& options,
                             BlockRange blocks) noexcept {
    const std::uint64_t elements =
        std::min<std::uint64_t>(versions.fresh.count(), options.block_elements);
    auto finder = ChangesFinder<T>::create(versions, options, elements);
    if (!finder.ok()) return finder.status();
    auto scratch = EncodeScratch::create(elements, options.isa);
    if (!scratch.ok()) return scratch.status();
    return Part{finder.take(), scratch.take(), blocks};
  }

  // Packs the blocks into `payload` and `entries`. `entries` points to the entry of the first
  // block.
  void pack(std::uint64_t count, std::uint32_t block_elements, std::uint64_t* entries,
            PayloadPart& payload) noexcept {
    for (std::uint64_t block = blocks_.first; block < blocks_.last; ++block) {
      const std::uint64_t first = block * block_elements;
      const BlockChanges<T> changes =
          finder_.find(first, elements_of_block(count, first, block_elements));
      const BlockPlan plan = plan_block(changes, scratch_);
      write_block(changes, plan, scratch_, payload.room(plan.entry.words));
      payload.add(plan.entry.words);
      *entries++ = plan.entry.encode();
    }
  }

  const BlockRange& blocks() const noexcept { return blocks_; }
  const ChangesFinder<T>& finder() const noexcept { return finder_; }

 private:
  Part(ChangesFinder<T> finder, EncodeScratch scratch, BlockRange blocks) noexcept
      : finder_{std::move(finder)}, scratch_{std::move(scratch)}, blocks_{blocks} {}

  ChangesFinder<T> finder_;
  EncodeScratch scratch_;
  BlockRange blocks_;
};

template <ElementBits T>
using Parts = std::vector<Part<T>>;

// All memory is allocated before the shadow changes, so nothing can fail half-way.
template <ElementBits T>
Result<Parts<T>> parts_of(const Versions<T>& versions, const PackOptions& options) noexcept {
  const std::uint64_t blocks = block_count(versions.fresh.count(), options.block_elements);
  const std::uint64_t count = std::clamp<std::uint64_t>(
      options.threads, 1, std::clamp<std::uint64_t>(blocks, 1, kThreadsMax));
  Parts<T> parts;
  for (std::uint64_t part = 0; part < count; ++part) {
    auto made = Part<T>::create(
        versions, options,
        {.first = part_border(blocks, part, count), .last = part_border(blocks, part + 1, count)});
    if (!made.ok()) return made.status();
    parts.push_back(made.take());
  }
  return parts;
}

}  // namespace

void settle_digests(const std::optional<Digest>& known, const Digest& moved,
                    PackedDelta& delta) noexcept {
  if (known) {
    delta.base_digest = *known;
    delta.digest = {known->first + moved.first, known->second + moved.second};
  } else {
    const Digest& now = delta.digest;
    delta.base_digest = {now.first - moved.first, now.second - moved.second};
  }
}

template <ElementBits T>
Status check_versions(const Box<const T>& fresh, const Box<const T>& shadow,
                      const PackOptions& options) noexcept {
  if (!is_block_elements(options.block_elements)) {
    return Status::invalid_argument("block_elements " + std::to_string(options.block_elements) +
                                    ": choose 65536 or 16384");
  }
  if (fresh.count() != shadow.count()) {
    return Status::invalid_argument("new has " + std::to_string(fresh.count()) +
                                    " elements and shadow " + std::to_string(shadow.count()) +
                                    ": they must be equal");
  }
  if (options.threshold > kNothingSent) {
    return Status::invalid_argument("threshold " + std::to_string(options.threshold) +
                                    " must be at most 32768, which sends nothing");
  }
  if (options.threshold > 0 && !std::is_same_v<T, std::uint16_t>) {
    return Status::invalid_argument("a threshold needs bf16, but the elements have " +
                                    std::to_string(kWidth<T>) + " bits");
  }
  if (shadow.shape.may_overlap_itself()) {
    return Status::invalid_argument("shadow has elements that share memory: pass a copy");
  }
  const auto is_shared = share_elements(fresh, shadow);
  if (!is_shared.ok()) return is_shared.status();
  if (is_shared.value()) {
    return Status::invalid_argument("new and shadow overlap in memory: pass a copy as shadow");
  }
  return check_ages(fresh, shadow, options.ages);
}

template <ElementBits T>
Result<PackedDelta> delta_pack(const Box<const T>& fresh, const Box<T>& shadow,
                               const PackOptions& options) noexcept {
  ROSE_TRY(check_versions<T>(fresh, shadow, options));
  const std::uint64_t count = fresh.count();
  auto parts = parts_of(Versions<T>{fresh, shadow}, options);
  if (!parts.ok()) return parts.status();
  auto entries = Buffer<std::uint64_t>::create(block_count(count, options.block_elements));
  if (!entries.ok()) return entries.status();
  auto room =
      PayloadRoom::create(entries.value().size(), raw_words(options.block_elements, kWidth<T>),
                          payload_words_max(count, options.block_elements, kWidth<T>),
                          static_cast<std::uint32_t>(parts.value().size()));
  if (!room.ok()) return room.status();

  PackedDelta packed{.entries = entries.take(), .payload = {}, .base_digest = {}, .digest = {}};
  for_each_part(static_cast<std::uint32_t>(parts.value().size()), [&](std::uint32_t at) noexcept {
    Part<T>& part = parts.value()[at];
    part.pack(count, options.block_elements, packed.entries.data() + part.blocks().first,
              room.value().part(at));
  });
  packed.payload = room.value().join();
  Digest moved;
  for (const Part<T>& part : parts.value()) {
    add(part.finder().digest(), packed.digest);
    add(part.finder().moved(), moved);
  }
  settle_digests(options.base_digest, moved, packed);
  return packed;
}

#define ROSE_DELTA_PACK(T)                                                    \
  template Status check_versions(const Box<const T>&, const Box<const T>&,    \
                                 const PackOptions&) noexcept;                \
  template Result<PackedDelta> delta_pack(const Box<const T>&, const Box<T>&, \
                                          const PackOptions&) noexcept;
ROSE_DELTA_PACK(std::uint8_t)
ROSE_DELTA_PACK(std::uint16_t)
ROSE_DELTA_PACK(std::uint32_t)
#undef ROSE_DELTA_PACK

}  // namespace rose::transfer
