#include "transfer/strat.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "transfer/block_reader.h"
#include "transfer/block_writer.h"
#include "transfer/delta_check.h"
#include "transfer/parallel.h"
#include "transfer/strat_decode.h"
#include "transfer/strat_encode.h"

namespace rose::transfer {

namespace {

// Copies a block unchanged.
Entry keep(const BlockView& block, std::uint32_t* out) noexcept {
  std::copy_n(block.words, block.entry.words, out);
  return block.entry;
}

// Encodes blocks for the wire. One thread uses it.
template <ElementBits T>
class StratPacker {
 public:
  static constexpr std::uint64_t words_max(const BlockView& block) noexcept {
    return block.entry.words;
  }

  static Result<StratPacker> create(std::uint32_t elements, const T* weights, bool is_after,
                                    const StratOptions& options) noexcept {
    auto room = ChangesRoom<T>::create(elements);
    if (!room.ok()) return room.status();
    auto encoder = StratEncoder<T>::create(elements, options.rule, options.isa);
    if (!encoder.ok()) return encoder.status();
    return StratPacker{room.take(), encoder.take(), weights, is_after};
  }

  Fault recode(const BlockView& block, std::uint32_t* out, Entry& entry) noexcept {
    if (const Fault fault = check_block(block, kWidth<T>, block.entry.words)) return fault;
    entry = block.entry;
    if (block.entry.kind == Kind::kEmpty) return nullptr;
    const std::uint32_t words = encoder_.encode(room_.read(block), weights_ + block.first,
                                                is_after_, block.entry.words, out);
    if (words == 0) {
      keep(block, out);
    } else {
      entry = {.kind = Kind::kStrat, .changed = block.entry.changed, .listed = 0, .words = words};
    }
    return nullptr;
  }

 private:
  StratPacker(ChangesRoom<T> room, StratEncoder<T> encoder, const T* weights,
              bool is_after) noexcept
      : room_{std::move(room)},
        encoder_{std::move(encoder)},
        weights_{weights},
        is_after_{is_after} {}

  ChangesRoom<T> room_;
  StratEncoder<T> encoder_;
  const T* weights_;
  bool is_after_;
};

// Decodes blocks so that they can be applied. One thread uses it.
template <ElementBits T>
class StratUnpacker {
 public:
  static constexpr std::uint64_t words_max(const BlockView& block) noexcept {
    const bool is_kept = block.entry.kind != Kind::kStrat;
    return is_kept ? block.entry.words : raw_words(block.elements, kWidth<T>);
  }

  static Result<StratUnpacker> create(std::uint32_t elements, const T* base,
                                      const StratOptions& options) noexcept {
    auto decoder = StratDecoder<T>::create(elements, options.rule, options.isa);
    if (!decoder.ok()) return decoder.status();
    auto scratch = EncodeScratch::create(elements, options.isa);
    if (!scratch.ok()) return scratch.status();
    return StratUnpacker{decoder.take(), scratch.take(), base};
  }

  Fault recode(const BlockView& block, std::uint32_t* out, Entry& entry) noexcept {
    if (block.entry.kind != Kind::kStrat) {
      const Fault fault = check_block(block, kWidth<T>, block.entry.words);
      if (fault == nullptr) entry = keep(block, out);
      return fault;
    }
    if (block.entry.listed != 0) return "it is STRAT, so `listed` in its entry must be 0";
    BlockChanges<T> changes;
    const StratWords words{
        .words = block.words, .count = block.entry.words, .changed = block.entry.changed};
    if (const Fault fault = decoder_.decode(words, base_ + block.first, block.elements, changes)) {
      return fault;
    }
    const BlockPlan plan = plan_block(changes, scratch_);
    if (plan.entry.words <= block.entry.words) {
      return "it is STRAT, so it must take fewer words than in its other encoding";
    }
    write_block(changes, plan, scratch_, out);
    entry = plan.entry;
    return nullptr;
  }

 private:
  StratUnpacker(StratDecoder<T> decoder, EncodeScratch scratch, const T* base) noexcept
      : decoder_{std::move(decoder)}, scratch_{std::move(scratch)}, base_{base} {}

  StratDecoder<T> decoder_;
  EncodeScratch scratch_;
  const T* base_;
};

// Consecutive blocks of a delta, which one thread recodes.
struct Share {
  BlockRange range;
  Buffer<std::uint32_t> payload;
  std::uint64_t words{0};
  Status status;
};

// Recodes the blocks of a share. The caller has checked that the table fits the payload.
template <typename Recoder>
void recode_share(const DeltaView& delta, Recoder recoder, std::uint64_t* entries,
                  Share& share) noexcept {
  std::uint64_t words_max = 0;
  for_each_block(delta, share.range, [&words_max](const BlockView& block) noexcept {
    words_max += Recoder::words_max(block);
  });
  share.status = give_room(share.payload, words_max);
  if (!share.status.ok()) return;
  Fault fault = nullptr;
  std::uint64_t at = share.range.first;
  for_each_block(delta, share.range, [&](const BlockView& block) noexcept {
    if (fault != nullptr) return;
    Entry entry;
    fault = recoder.recode(block, share.payload.data() + share.words, entry);
    if (fault != nullptr) return;
    entries[at++] = entry.encode();
    share.words += entry.words;
  });
  if (fault != nullptr) {
    share.status =
        Status::corrupt("block " + std::to_string(at) + " of the delta: " + std::string{fault});
  }
}

// Joins the payloads of all shares. If there is only one share, its payload is not copied.
Result<Buffer<std::uint32_t>> joined(std::span<Share> shares) noexcept {
  std::uint64_t words = 0;
  for (const Share& share : shares) {
    ROSE_TRY(share.status);
    words += share.words;
  }
  if (shares.size() == 1) {
    shares[0].payload.shrink(words);
    return std::move(shares[0].payload);
  }
  auto payload = Buffer<std::uint32_t>::create(words);
  if (!payload.ok()) return payload.status();
  std::uint32_t* out = payload.value().data();
  for (const Share& share : shares) {
    out = std::copy_n(share.payload.data(), share.words, out);
  }
  return payload;
}

Status check_recoded(const DeltaView& delta, std::size_t elements, std::uint32_t width,
                     const StratOptions& options) noexcept {
  if (options.threads == 0 || options.threads > kStratThreadsMax) {
    return Status::invalid_argument("threads " + std::to_string(options.threads) +
                                    ": choose 1 to " + std::to_string(kStratThreadsMax));
  }
  if (delta.width != width) {
    return Status::invalid_argument("weights have elements of " + std::to_string(width) +
                                    " bits, the delta of " + std::to_string(delta.width) +
                                    ": they must be equal");
  }
  if (elements != delta.count) {
    return Status::invalid_argument("weights have " + std::to_string(elements) +
                                    " elements, the delta " + std::to_string(delta.count) +
                                    ": they must be equal");
  }
  ROSE_TRY(check_rule(options.rule, width));
  // An empty range: only the table is checked here. Each block is checked when it is read.
  return check_blocks(delta, {.first = 0, .last = 0});
}

// `make(elements)` returns a Result of a recoder for blocks of at most `elements` elements.
template <typename Make>
Result<RecodedDelta> recode(const DeltaView& delta, std::uint32_t threads, Make make) noexcept {
  RecodedDelta made;
  const std::uint64_t blocks = delta.entries.size();
  ROSE_TRY(give_room(made.entries, blocks));
  const auto count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, threads));
  std::array<Share, kStratThreadsMax> room;
  const std::span<Share> shares{room.data(), count};
  const auto elements =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(delta.count, delta.block_elements));
  for_each_part(count, [&](std::uint32_t part) noexcept {
    Share& share = shares[part];
    share.range = {.first = part_border(blocks, part, count),
                   .last = part_border(blocks, part + 1, count)};
    auto recoder = make(elements);
    share.status = recoder.status();
    if (recoder.ok()) recode_share(delta, recoder.take(), made.entries.data(), share);
  });
  auto payload = joined(shares);
  if (!payload.ok()) return payload.status();
  made.payload = payload.take();
  return made;
}

}  // namespace

template <ElementBits T>
Result<RecodedDelta> strat_pack(const DeltaView& delta, std::span<const T> weights, bool is_after,
                                const StratOptions& options) noexcept {
  ROSE_TRY(check_recoded(delta, weights.size(), kWidth<T>, options));
  return recode(delta, options.threads, [&](std::uint32_t elements) noexcept {
    return StratPacker<T>::create(elements, weights.data(), is_after, options);
  });
}

template <ElementBits T>
Result<RecodedDelta> strat_unpack(const DeltaView& encoded, std::span<const T> base,
                                  const StratOptions& options) noexcept {
  ROSE_TRY(check_recoded(encoded, base.size(), kWidth<T>, options));
  return recode(encoded, options.threads, [&](std::uint32_t elements) noexcept {
    return StratUnpacker<T>::create(elements, base.data(), options);
  });
}

#define ROSE_STRAT(T)                                                                  \
  template Result<RecodedDelta> strat_pack(const DeltaView&, std::span<const T>, bool, \
                                           const StratOptions&) noexcept;              \
  template Result<RecodedDelta> strat_unpack(const DeltaView&, std::span<const T>,     \
                                             const StratOptions&) noexcept
ROSE_STRAT(std::uint8_t);
ROSE_STRAT(std::uint16_t);
ROSE_STRAT(std::uint32_t);
#undef ROSE_STRAT

}  // namespace rose::transfer
