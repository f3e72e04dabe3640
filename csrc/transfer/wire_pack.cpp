#include "transfer/wire_pack.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "transfer/block_writer.h"
#include "transfer/changes_finder.h"
#include "transfer/digest.h"
#include "transfer/parallel.h"
#include "transfer/payload_room.h"
#include "transfer/strat_encode.h"

namespace rose::transfer {

namespace {

// The delta, in one of its two encodings.
struct Form {
  Buffer<std::uint64_t> entries;
  PayloadRoom payload;

  static Result<Form> create(std::uint64_t blocks, std::uint64_t block_words,
                             std::uint32_t parts) noexcept {
    auto entries = Buffer<std::uint64_t>::create(blocks);
    if (!entries.ok()) return entries.status();
    auto payload = PayloadRoom::create(blocks, block_words, blocks * block_words, parts);
    if (!payload.ok()) return payload.status();
    return Form{.entries = entries.take(), .payload = payload.take()};
  }
};

// The blocks that one thread packs.
template <ElementBits T>
class WirePart {
 public:
  static Result<WirePart> create(const Versions<T>& versions, const PackOptions& options,
                                 const ClassRule& rule, BlockRange blocks) noexcept {
    const auto elements = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(versions.fresh.count(), options.block_elements));
    auto finder = ChangesFinder<T>::create(versions, options, elements);
    if (!finder.ok()) return finder.status();
    auto scratch = EncodeScratch::create(elements, options.isa);
    if (!scratch.ok()) return scratch.status();
    auto encoder = StratEncoder<T>::create(elements, rule, options.isa);
    if (!encoder.ok()) return encoder.status();
    return WirePart{finder.take(), scratch.take(), encoder.take(), blocks};
  }

  // Packs the blocks, and stores them as part `at` of both encodings.
  void pack(const Box<T>& shadow, std::uint32_t block_elements, std::uint32_t at, Form& delta,
            Form& wire) noexcept {
    PayloadPart& deltas = delta.payload.part(at);
    PayloadPart& wire_part = wire.payload.part(at);
    for (std::uint64_t block = blocks_.first; block < blocks_.last; ++block) {
      const std::uint64_t first = block * block_elements;
      const BlockChanges<T> changes =
          finder_.find(first, elements_of_block(shadow.count(), first, block_elements));
      const BlockPlan plan = plan_block(changes, scratch_);
      std::uint32_t* const plain = deltas.room(plan.entry.words);
      write_block(changes, plan, scratch_, plain);
      deltas.add(plan.entry.words);
      delta.entries[block] = plan.entry.encode();

      std::uint32_t* const out = wire_part.room(plan.entry.words);
      Entry entry = plan.entry;
      const std::uint32_t words =
          changes.changed == 0
              ? 0
              : encoder_.encode(changes, shadow.data + first, true, plan.entry.words, out);
      if (words == 0) {
        std::copy_n(plain, plan.entry.words, out);
      } else {
        entry = {.kind = Kind::kStrat, .changed = changes.changed, .listed = 0, .words = words};
      }
      wire_part.add(entry.words);
      wire.entries[block] = entry.encode();
    }
  }

  const ChangesFinder<T>& finder() const noexcept { return finder_; }

 private:
  WirePart(ChangesFinder<T> finder, EncodeScratch scratch, StratEncoder<T> encoder,
           BlockRange blocks) noexcept
      : finder_{std::move(finder)},
        scratch_{std::move(scratch)},
        encoder_{std::move(encoder)},
        blocks_{blocks} {}

  ChangesFinder<T> finder_;
  EncodeScratch scratch_;
  StratEncoder<T> encoder_;
  BlockRange blocks_;
};

}  // namespace

template <ElementBits T>
Result<PackedForWire> wire_pack(const Box<const T>& fresh, const Box<T>& shadow,
                                const PackOptions& options, const ClassRule& rule) noexcept {
  ROSE_TRY(check_versions<T>(fresh, shadow, options));
  ROSE_TRY(check_rule(rule, kWidth<T>));
  if (!shadow.is_row()) {
    return Status::invalid_argument(
        "shadow must be contiguous: pass a contiguous shadow, or pack and recode in two steps");
  }
  const std::uint64_t count = shadow.count();
  const std::uint64_t blocks = block_count(count, options.block_elements);
  const std::uint64_t block_words = raw_words(options.block_elements, kWidth<T>);
  const auto threads = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      options.threads, 1, std::clamp<std::uint64_t>(blocks, 1, kStratThreadsMax)));
  // All memory is allocated before the shadow changes, so nothing can fail half-way.
  auto delta = Form::create(blocks, block_words, threads);
  if (!delta.ok()) return delta.status();
  auto wire = Form::create(blocks, block_words, threads);
  if (!wire.ok()) return wire.status();
  std::array<std::optional<WirePart<T>>, kStratThreadsMax> parts;
  for (std::uint32_t at = 0; at < threads; ++at) {
    const BlockRange range{.first = part_border(blocks, at, threads),
                           .last = part_border(blocks, at + 1, threads)};
    auto part = WirePart<T>::create(Versions<T>{fresh, shadow}, options, rule, range);
    if (!part.ok()) return part.status();
    parts[at].emplace(part.take());
  }
  for_each_part(threads, [&](std::uint32_t at) noexcept {
    parts[at]->pack(shadow, options.block_elements, at, delta.value(), wire.value());
  });

  PackedForWire packed;
  Digest moved;
  for (std::uint32_t at = 0; at < threads; ++at) {
    const WirePart<T>& part = *parts[at];
    add(part.finder().digest(), packed.delta.digest);
    add(part.finder().moved(), moved);
  }
  settle_digests(options.base_digest, moved, packed.delta);
  packed.delta.entries = std::move(delta.value().entries);
  packed.delta.payload = delta.value().payload.join();
  packed.wire = {.entries = std::move(wire.value().entries),
                 .payload = wire.value().payload.join()};
  return packed;
}

#define ROSE_WIRE_PACK(T)                                                                          \
  template Result<PackedForWire> wire_pack(const Box<const T>&, const Box<T>&, const PackOptions&, \
                                           const ClassRule&) noexcept
ROSE_WIRE_PACK(std::uint8_t);
ROSE_WIRE_PACK(std::uint16_t);
ROSE_WIRE_PACK(std::uint32_t);
#undef ROSE_WIRE_PACK

}  // namespace rose::transfer
