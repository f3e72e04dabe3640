#include "transfer/strat_encode.h"

#include <algorithm>
#include <numeric>

#include "transfer/class_groups.h"
#include "transfer/signs.h"

namespace rose::transfer {

template <ElementBits T>
Result<StratEncoder<T>> StratEncoder<T>::create(std::uint32_t elements, const ClassRule& rule,
                                                Isa isa) noexcept {
  ROSE_TRY(check_rule(rule, kWidth<T>));
  StratEncoder made;
  made.rule_ = rule;
  made.isa_ = isa;
  ROSE_TRY(give_room(made.planes_, groups_of(elements)));
  ROSE_TRY(give_room(made.starts_, groups_of(elements)));
  ROSE_TRY(give_room(made.words_, raw_words(elements, kWidth<T>) + StreamWriter::kSlackWords));
  ROSE_TRY(give_room(made.classes_, elements));
  for (auto* const room : {&made.ranks_, &made.grouped_, &made.listed_, &made.large_}) {
    ROSE_TRY(give_room(*room, elements + kChangesSlack));
  }
  ROSE_TRY(give_room(made.differences_, elements + kChangesSlack));
  return made;
}

template <ElementBits T>
std::uint32_t StratEncoder<T>::encode(const BlockChanges<T>& changes, const T* weights,
                                      bool is_after, std::uint32_t words_limit,
                                      std::uint32_t* out) noexcept {
  classify(changes, weights, is_after);
  group(changes);
  const std::uint32_t words = words_of_bits(bits());
  // Whatever the limit, STRAT must take fewer words than RAW.
  if (words >= std::min(words_limit, raw_words(changes.elements, kWidth<T>))) return 0;
  StreamWriter stream{words_.data()};
  write_counts(stream);
  for (std::uint32_t c = 0; c < kClasses; ++c) write_body(stream, c);
  std::copy_n(words_.data(), words, out);
  return words;
}

// Finds the class of each change, and its rank in the class.
template <ElementBits T>
void StratEncoder<T>::classify(const BlockChanges<T>& changes, const T* weights,
                               bool is_after) noexcept {
  find_planes(isa_, weights, changes.elements, rule_, planes_.data());
  if (is_after) keep_old_classes(changes, weights);
  // From here on the classes are read from the planes only. So if another thread writes the weights
  // in the meantime, the result encodes other changes, but is still a valid encoding.
  const RankedChanges ranked{.changed = changes.changed,
                             .positions = changes.positions,
                             .classes = classes_.data(),
                             .ranks = ranks_.data()};
  const ClassCounts counts =
      find_ranks(isa_, planes_.data(), changes.elements, ranked, starts_.data());
  for (std::uint32_t c = 0; c < kClasses; ++c) bodies_[c] = {.elements = counts[c]};
}

// Sets the planes to the classes before the changes.
template <ElementBits T>
void StratEncoder<T>::keep_old_classes(const BlockChanges<T>& changes, const T* weights) noexcept {
  const T exponent = rule_.exponent_mask<T>();
  for (std::uint32_t i = 0; i < changes.changed; ++i) {
    const std::uint32_t position = changes.positions[i];
    const T now = weights[position];
    const T old = static_cast<T>(now - changes.differences[i]);
    if (((now ^ old) & exponent) == 0) continue;  // usually, because steps are small
    ClassPlanes& group = planes_[position / kGroupElements];
    const std::uint32_t lane = position % kGroupElements;
    const std::uint64_t c = rule_.class_of(old);
    for (std::uint32_t plane = 0; plane < 3; ++plane) {
      const std::uint64_t kept = group.of[plane] & ~(std::uint64_t{1} << lane);
      group.of[plane] = kept | (c >> plane & 1) << lane;
    }
  }
}

// Groups the changes by class, in their order, and finds the changes that are listed.
template <ElementBits T>
void StratEncoder<T>::group(const BlockChanges<T>& changes) noexcept {
  const ClassCounts counts = group_by_class<T>(isa_, {.changed = changes.changed,
                                                      .classes = classes_.data(),
                                                      .ranks = ranks_.data(),
                                                      .differences = changes.differences,
                                                      .grouped_ranks = grouped_.data(),
                                                      .grouped_differences = differences_.data()});
  std::uint32_t first = 0;
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    bodies_[c].first = first;
    bodies_[c].changed = counts[c];
    list(bodies_[c], c);
    first += counts[c];
  }
}

// The size of the i-th listed change of a class, minus the smallest possible size.
template <ElementBits T>
std::uint32_t StratEncoder<T>::magnitude_of(const ClassBody& body, std::uint32_t i,
                                            std::uint32_t least) const noexcept {
  return size_of(differences_[body.first + listed_[body.first + i]]) - least;
}

template <ElementBits T>
void StratEncoder<T>::list(ClassBody& body, std::uint32_t of_class) noexcept {
  std::uint16_t* const listed = listed_.data() + body.first;
  if (rule_.is_all(of_class)) {
    body.listed = body.changed;
    std::iota(listed, listed + body.listed, std::uint16_t{0});
  } else {
    body.listed = find_listed(isa_, differences_.data() + body.first, body.changed, listed);
  }
  const std::uint32_t least = least_size(of_class);
  const std::uint32_t width = rule_.magnitude_bits[of_class];
  for (std::uint32_t i = 0; i < body.listed; ++i) {
    body.large += magnitude_of(body, i, least) >> width != 0 ? 1U : 0U;
  }
}

template <ElementBits T>
std::uint32_t StratEncoder<T>::bits() const noexcept {
  std::uint32_t bits = 0;
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    bits += bits_of_counts(bodies_[c], rule_.is_all(c));
    bits += bits_of_body(bodies_[c], rule_.is_all(c), rule_.magnitude_bits[c], kWidth<T>);
  }
  return bits;
}

template <ElementBits T>
void StratEncoder<T>::write_counts(StreamWriter& stream) const noexcept {
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    const ClassBody& body = bodies_[c];
    stream.put_gamma(body.changed + 1);
    if (body.changed != 0 && !rule_.is_all(c)) stream.put_gamma(body.listed + 1);
    if (body.listed != 0) stream.put_gamma(body.large + 1);
  }
}

template <ElementBits T>
void StratEncoder<T>::write_body(StreamWriter& stream, std::uint32_t of_class) noexcept {
  const ClassBody& body = bodies_[of_class];
  if (body.changed == 0) return;
  const std::uint16_t* const ranks = grouped_.data() + body.first;
  if (is_bitmap(body.elements, body.changed)) {
    stream.put_bitmap(ranks, body.changed, body.elements);
  } else {
    stream.put_elias_fano(ranks, body.changed, body.elements);
  }
  const T* const differences = differences_.data() + body.first;
  for (std::uint32_t i = 0; i < body.changed; i += kSignsAtOnce) {
    const std::uint32_t left = body.changed - i;
    stream.put(signs_of(differences + i, left), std::min(left, kSignsAtOnce));
  }
  if (body.listed != 0) write_sizes(stream, of_class);
}

template <ElementBits T>
void StratEncoder<T>::write_sizes(StreamWriter& stream, std::uint32_t of_class) noexcept {
  const ClassBody& body = bodies_[of_class];
  const std::uint32_t least = least_size(of_class);
  const std::uint32_t width = rule_.magnitude_bits[of_class];
  if (!rule_.is_all(of_class)) {
    stream.put_elias_fano(listed_.data() + body.first, body.listed, body.changed);
  }
  std::uint32_t large = 0;
  for (std::uint32_t i = 0; i < body.listed; ++i) {
    const std::uint32_t magnitude = magnitude_of(body, i, least);
    const bool is_large = magnitude >> width != 0;
    stream.put(is_large ? 0 : magnitude, width);
    if (is_large) large_[large++] = static_cast<std::uint16_t>(i);
  }
  if (large == 0) return;
  stream.put_elias_fano(large_.data(), large, body.listed);
  for (std::uint32_t i = 0; i < large; ++i) {
    stream.put(magnitude_of(body, large_[i], least), kWidth<T>);
  }
}

template class StratEncoder<std::uint8_t>;
template class StratEncoder<std::uint16_t>;
template class StratEncoder<std::uint32_t>;

}  // namespace rose::transfer
