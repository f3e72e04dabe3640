#include "transfer/strat_decode.h"

#include <algorithm>

namespace rose::transfer {

template <ElementBits T>
Result<StratDecoder<T>> StratDecoder<T>::create(std::uint32_t elements, const ClassRule& rule,
                                                Isa isa) noexcept {
  ROSE_TRY(check_rule(rule, kWidth<T>));
  StratDecoder made;
  made.rule_ = rule;
  made.isa_ = isa;
  made.elements_max_ = elements;
  ROSE_TRY(give_room(made.planes_, groups_of(elements)));
  ROSE_TRY(give_room(made.words_, raw_words(elements, kWidth<T>) + StreamReader::kPaddingWords));
  for (auto* const room :
       {&made.ranks_, &made.positions_, &made.places_, &made.listed_, &made.large_}) {
    ROSE_TRY(give_room(*room, elements));
  }
  ROSE_TRY(give_room(made.grouped_, elements));
  ROSE_TRY(give_room(made.differences_, elements));
  ROSE_TRY(give_room(made.magnitudes_, elements));
  return made;
}

template <ElementBits T>
auto StratDecoder<T>::decode(const StratWords& block, const T* base, std::uint32_t elements,
                             BlockChanges<T>& changes) noexcept -> Fault {
  if (const Fault fault = check_sizes(block, elements)) return fault;
  find_planes(isa_, base, elements, rule_, planes_.data());
  const ClassCounts counts = count_classes(isa_, planes_.data(), elements);
  for (std::uint32_t c = 0; c < kClasses; ++c) bodies_[c] = {.elements = counts[c]};
  std::copy_n(block.words, block.count, words_.data());
  std::fill_n(words_.data() + block.count, StreamReader::kPaddingWords, 0U);

  StreamReader stream{words_.data(), block.count};
  if (const Fault fault = read_counts(stream, block.changed)) return fault;
  if (const Fault fault = check_end(stream)) return fault;
  WantedRanks wanted{.ranks = ranks_.data()};
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    if (const Fault fault = read_body(stream, c)) return fault;
    wanted.starts[c + 1] = bodies_[c].first + bodies_[c].changed;
  }
  find_positions(isa_, planes_.data(), elements, wanted, positions_.data(), places_.data());
  for (std::uint32_t i = 0; i < block.changed; ++i) differences_[i] = grouped_[places_[i]];
  changes = {.elements = elements,
             .changed = block.changed,
             .positions = positions_.data(),
             .differences = differences_.data()};
  return nullptr;
}

template <ElementBits T>
auto StratDecoder<T>::check_sizes(const StratWords& block, std::uint32_t elements) const noexcept
    -> Fault {
  if (elements > elements_max_) return "it has more elements than a block";
  if (block.changed == 0 || block.changed > elements)
    return "its number of changes is out of range";
  if (block.count >= raw_words(elements, kWidth<T>))
    return "it is STRAT, so it must take fewer words than RAW";
  return nullptr;
}

template <ElementBits T>
auto StratDecoder<T>::read_counts(StreamReader& stream, std::uint32_t changed) noexcept -> Fault {
  constexpr Fault kEnds = "it ends inside its counts";
  std::uint32_t left = changed;
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    ClassBody& body = bodies_[c];
    const auto take = [&stream](std::uint32_t& number) noexcept {
      std::uint32_t above = 0;
      if (!stream.take_gamma(above)) return false;
      number = above - 1;
      return true;
    };
    if (!take(body.changed)) return kEnds;
    if (body.changed > body.elements) return "a class has more changes than elements";
    if (body.changed > left) return "its classes have more changes than its entry";
    body.first = changed - left;
    left -= body.changed;
    if (rule_.is_all(c)) {
      body.listed = body.changed;
    } else if (body.changed != 0 && !take(body.listed)) {
      return kEnds;
    }
    if (body.listed > body.changed) return "a class has more listed changes than changes";
    if (body.listed != 0 && !take(body.large)) return kEnds;
    if (body.large > body.listed) return "a class has more large magnitudes than listed changes";
  }
  return left == 0 ? nullptr : "its classes have fewer changes than its entry";
}

// Checks that the stream has exactly the length that its counts require.
template <ElementBits T>
auto StratDecoder<T>::check_end(const StreamReader& stream) const noexcept -> Fault {
  std::uint32_t end = stream.at();
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    end += bits_of_body(bodies_[c], rule_.is_all(c), rule_.magnitude_bits[c], kWidth<T>);
  }
  if (32 * words_of_bits(end) != stream.bits()) {
    return "its number of words does not match its classes";
  }
  return stream.field(end, stream.bits() - end) == 0 ? nullptr : "its unused bits are not 0";
}

template <ElementBits T>
auto StratDecoder<T>::read_body(StreamReader& stream, std::uint32_t of_class) noexcept -> Fault {
  const ClassBody& body = bodies_[of_class];
  if (body.changed == 0) return nullptr;
  std::uint16_t* const ranks = ranks_.data() + body.first;
  const bool is_read = is_bitmap(body.elements, body.changed)
                           ? stream.take_bitmap(body.elements, body.changed, ranks)
                           : stream.take_elias_fano(body.elements, body.changed, ranks);
  if (!is_read) {
    return "the ranks of a class do not ascend within it, or their number differs from its changes";
  }
  StreamReader signs = stream;
  stream.skip(body.changed);
  if (body.listed != 0) {
    if (const Fault fault = read_magnitudes(stream, of_class)) return fault;
  }
  return set_sizes(signs, of_class);
}

template <ElementBits T>
auto StratDecoder<T>::read_magnitudes(StreamReader& stream, std::uint32_t of_class) noexcept
    -> Fault {
  const ClassBody& body = bodies_[of_class];
  const std::uint32_t width = rule_.magnitude_bits[of_class];
  if (!rule_.is_all(of_class) &&
      !stream.take_elias_fano(body.changed, body.listed, listed_.data())) {
    return "the ranks of listed changes do not ascend within a class, or their number is wrong";
  }
  for (std::uint32_t i = 0; i < body.listed; ++i) magnitudes_[i] = stream.take(width);
  if (body.large == 0) return nullptr;
  if (!stream.take_elias_fano(body.listed, body.large, large_.data())) {
    return "the large ranks do not ascend within the listed changes, or their number is wrong";
  }
  for (std::uint32_t i = 0; i < body.large; ++i) {
    const std::uint32_t magnitude = stream.take(kWidth<T>);
    if (magnitude >> width == 0) return "a large magnitude is small enough for its field";
    if (magnitudes_[large_[i]] != 0) return "the field of a large magnitude is not 0";
    magnitudes_[large_[i]] = magnitude;
  }
  return nullptr;
}

// Computes differences from signs and sizes.
template <ElementBits T>
auto StratDecoder<T>::set_sizes(StreamReader& signs, std::uint32_t of_class) noexcept -> Fault {
  constexpr std::uint64_t kSizeMax = std::uint64_t{1} << (kWidth<T> - 1);
  const ClassBody& body = bodies_[of_class];
  T* const differences = grouped_.data() + body.first;
  std::fill_n(differences, body.changed, T{1});
  const bool is_all = rule_.is_all(of_class);
  bool is_beyond = false;
  for (std::uint32_t i = 0; i < body.listed; ++i) {
    const std::uint64_t size = std::uint64_t{magnitudes_[i]} + (is_all ? 1 : 2);
    is_beyond |= size > kSizeMax;
    differences[is_all ? i : listed_[i]] = static_cast<T>(size);
  }
  for (std::uint32_t i = 0; i < body.changed; ++i) {
    const bool is_down = signs.take(1) != 0;
    // The smallest number has the largest size, and no positive counterpart.
    is_beyond |= !is_down && differences[i] == kSizeMax;
    if (is_down) differences[i] = static_cast<T>(T{0} - differences[i]);
  }
  return is_beyond ? "a size exceeds the range of an element" : nullptr;
}

template class StratDecoder<std::uint8_t>;
template class StratDecoder<std::uint16_t>;
template class StratDecoder<std::uint32_t>;

}  // namespace rose::transfer
