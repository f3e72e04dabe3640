#include "transfer/link_pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "transfer/block_writer.h"
#include "transfer/changes_finder.h"
#include "transfer/digest.h"
#include "transfer/parallel.h"
#include "transfer/strat_encode.h"

namespace rose::transfer {

namespace {

// One form of the delta, as long as its words lie where they begin if all blocks are RAW.
struct Form {
  Buffer<std::uint64_t> entries;
  Buffer<std::uint32_t> payload;

  static Result<Form> create(std::uint64_t blocks, std::uint64_t words) noexcept {
    Form form;
    ROSE_TRY(give_room(form.entries, blocks));
    ROSE_TRY(give_room(form.payload, words));
    return form;
  }
};

// One thread's share of the blocks.
template <ElementBits T>
class LinkPart {
 public:
  static Result<LinkPart> create(const Versions<T>& versions, const PackOptions& options,
                                 const ClassRule& rule, BlockRange blocks) noexcept {
    const auto elements = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(versions.fresh.count(), options.block_elements));
    auto finder = ChangesFinder<T>::create(versions, options, elements);
    if (!finder.ok()) return finder.status();
    auto scratch = EncodeScratch::create(elements, options.isa);
    if (!scratch.ok()) return scratch.status();
    auto encoder = StratEncoder<T>::create(elements, rule, options.isa);
    if (!encoder.ok()) return encoder.status();
    return LinkPart{finder.take(), scratch.take(), encoder.take(), blocks};
  }

  void pack(const Box<T>& shadow, std::uint32_t block_elements, Form& delta, Form& link) noexcept {
    const std::uint64_t start = blocks_.first * raw_words(block_elements, kWidth<T>);
    for (std::uint64_t block = blocks_.first; block < blocks_.last; ++block) {
      const std::uint64_t first = block * block_elements;
      const BlockChanges<T> changes =
          finder_.find(first, elements_of_block(shadow.count(), first, block_elements));
      const BlockPlan plan = plan_block(changes, scratch_);
      std::uint32_t* const plain = delta.payload.data() + start + delta_words_;
      write_block(changes, plan, scratch_, plain);
      delta.entries[block] = plan.entry.encode();
      delta_words_ += plan.entry.words;

      std::uint32_t* const out = link.payload.data() + start + link_words_;
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
      link.entries[block] = entry.encode();
      link_words_ += entry.words;
    }
  }

  const BlockRange& blocks() const noexcept { return blocks_; }
  std::uint64_t delta_words() const noexcept { return delta_words_; }
  std::uint64_t link_words() const noexcept { return link_words_; }
  const ChangesFinder<T>& finder() const noexcept { return finder_; }

 private:
  LinkPart(ChangesFinder<T> finder, EncodeScratch scratch, StratEncoder<T> encoder,
           BlockRange blocks) noexcept
      : finder_{std::move(finder)},
        scratch_{std::move(scratch)},
        encoder_{std::move(encoder)},
        blocks_{blocks} {}

  ChangesFinder<T> finder_;
  EncodeScratch scratch_;
  StratEncoder<T> encoder_;
  BlockRange blocks_;
  std::uint64_t delta_words_{0};
  std::uint64_t link_words_{0};
};

// Moves the words of a part behind those of the parts before it.
void move_up(Buffer<std::uint32_t>& payload, std::uint64_t from, std::uint64_t words,
             std::uint64_t& done) noexcept {
  if (from != done) {
    std::memmove(payload.data() + done, payload.data() + from, words * sizeof *payload.data());
  }
  done += words;
}

}  // namespace

template <ElementBits T>
Result<PackedLink> link_pack(const Box<const T>& fresh, const Box<T>& shadow,
                             const PackOptions& options, const ClassRule& rule) noexcept {
  ROSE_TRY(check_versions<T>(fresh, shadow, options));
  ROSE_TRY(check_rule(rule, kWidth<T>));
  if (!shadow.is_row()) {
    return Status::invalid_argument(
        "shadow is no row of elements: pack and recode it in two steps");
  }
  const std::uint64_t count = shadow.count();
  const std::uint64_t blocks = block_count(count, options.block_elements);
  const std::uint64_t block_words = raw_words(options.block_elements, kWidth<T>);
  // All room is there before the shadow moves: nothing can fail half-way.
  auto delta = Form::create(blocks, blocks * block_words);
  if (!delta.ok()) return delta.status();
  auto link = Form::create(blocks, blocks * block_words);
  if (!link.ok()) return link.status();
  const auto threads = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      options.threads, 1, std::clamp<std::uint64_t>(blocks, 1, kStratThreadsMax)));
  std::array<std::optional<LinkPart<T>>, kStratThreadsMax> parts;
  for (std::uint32_t at = 0; at < threads; ++at) {
    const BlockRange range{.first = part_border(blocks, at, threads),
                           .last = part_border(blocks, at + 1, threads)};
    auto part = LinkPart<T>::create(Versions<T>{fresh, shadow}, options, rule, range);
    if (!part.ok()) return part.status();
    parts[at].emplace(part.take());
  }
  for_each_part(threads, [&](std::uint32_t at) noexcept {
    parts[at]->pack(shadow, options.block_elements, delta.value(), link.value());
  });

  PackedLink packed;
  Digest moved;
  std::uint64_t delta_words = 0;
  std::uint64_t link_words = 0;
  for (std::uint32_t at = 0; at < threads; ++at) {
    const LinkPart<T>& part = *parts[at];
    const std::uint64_t start = part.blocks().first * block_words;
    move_up(delta.value().payload, start, part.delta_words(), delta_words);
    move_up(link.value().payload, start, part.link_words(), link_words);
    add(part.finder().digest(), packed.delta.digest);
    add(part.finder().moved(), moved);
  }
  delta.value().payload.shrink(delta_words);
  link.value().payload.shrink(link_words);
  settle_digests(options.base_digest, moved, packed.delta);
  packed.delta.entries = std::move(delta.value().entries);
  packed.delta.payload = std::move(delta.value().payload);
  packed.link = {.entries = std::move(link.value().entries),
                 .payload = std::move(link.value().payload)};
  return packed;
}

#define ROSE_LINK_PACK(T)                                                                       \
  template Result<PackedLink> link_pack(const Box<const T>&, const Box<T>&, const PackOptions&, \
                                        const ClassRule&) noexcept
ROSE_LINK_PACK(std::uint8_t);
ROSE_LINK_PACK(std::uint16_t);
ROSE_LINK_PACK(std::uint32_t);
#undef ROSE_LINK_PACK

}  // namespace rose::transfer
