#include "transfer/changes_finder.h"

#include <algorithm>
#include <type_traits>

#include "transfer/change_key.h"
#include "transfer/digest.h"
#include "transfer/prefetch.h"

namespace rose::transfer {

namespace {

constexpr std::uint8_t kOldest = 255;
constexpr std::uintptr_t kPageBytes = 4096;

// Returns a place in `room`, at the start of a cache line. Processors delay a load that follows a
// store whose address has the same lower 12 bits, so copying `from` is fastest to a place whose
// lower bits differ most.
template <typename T>
T* half_a_page_from(const T* from, T* room) noexcept {
  const auto start = reinterpret_cast<std::uintptr_t>(room);
  const auto wanted = reinterpret_cast<std::uintptr_t>(from) + kPageBytes / 2;
  const std::uintptr_t line = (start + kLineBytes - 1) / kLineBytes * kLineBytes;
  const std::uintptr_t shift = (wanted - line) % kPageBytes / kLineBytes * kLineBytes;
  return reinterpret_cast<T*>(line + shift);
}

template <typename Number>
Status make_room(Buffer<Number>& room, std::size_t size) noexcept {
  auto made = Buffer<Number>::create(size);
  if (!made.ok()) return made.status();
  room = made.take();
  return {};
}

}  // namespace

template <ElementBits T>
Result<ChangesFinder<T>> ChangesFinder<T>::create(const Versions<T>& versions,
                                                  const PackOptions& options,
                                                  std::size_t elements) noexcept {
  ChangesFinder finder{versions, options};
  auto room = ChangesRoom<T>::create(elements);
  if (!room.ok()) return room.status();
  finder.room_ = room.take();
  ROSE_TRY(make_room(finder.seen_room_, kTile + (kPageBytes + kLineBytes) / sizeof(T)));
  finder.seen_ = half_a_page_from(versions.fresh.data, finder.seen_room_.data());
  if (!versions.shadow.is_row()) ROSE_TRY(make_room(finder.shadow_tile_, kTile));
  if (finder.has_ages()) {
    ROSE_TRY(make_room(finder.ages_tile_, kTile));
    ROSE_TRY(make_room(finder.left_ages_, kTile));
    ROSE_TRY(make_room(finder.left_, kTile));
  }
  return finder;
}

template <ElementBits T>
BlockChanges<T> ChangesFinder<T>::find(std::uint64_t first, std::uint32_t elements) noexcept {
  changed_ = 0;
  for (std::uint32_t base = 0; base < elements; base += kTile) {
    Tile tile{.first = first + base, .elements = std::min(kTile, elements - base), .base = base};
    tile.fresh = in_a_row(versions_.fresh, tile.first, tile.elements, seen_);
    tile.shadow = versions_.shadow.data + tile.first;
    if (!versions_.shadow.is_row()) {
      tile.shadow = shadow_tile_.data();
      gather<T>(versions_.shadow, tile.first, tile.elements, tile.shadow);
    }
    std::uint16_t* const found = room_.positions() + changed_;
    const std::uint32_t count = sends_all() ? find_all(tile, found) : find_some(tile, found);
    if (!versions_.shadow.is_row()) move_box(tile, count);
    changed_ += count;
  }
  return {.elements = elements,
          .changed = changed_,
          .positions = room_.positions(),
          .differences = room_.differences()};
}

template <ElementBits T>
std::uint32_t ChangesFinder<T>::find_differing(const Tile& tile, std::uint16_t* found) noexcept {
  return static_cast<std::uint32_t>(find_changed<T>(options_->isa, {tile.fresh, tile.shadow, seen_},
                                                    tile.elements, tile.base, found));
}

// All differences are sent, so the shadow becomes equal to the new elements. One loop finds the
// differences and digests the new elements.
template <ElementBits T>
std::uint32_t ChangesFinder<T>::find_all(const Tile& tile, std::uint16_t* found) noexcept {
  if (tile.elements % kInWord != 0) {
    const std::uint32_t count = find_differing(tile, found);
    add_all(tile, tile.shadow, moved_, -1);
    add_all(tile, seen_, moved_, 1);
    add_all(tile, seen_, digest_, 1);
    take(tile, count);
    return count;
  }
  const std::uint32_t count =
      options_->base_digest
          ? find_differing(tile, found)
          : static_cast<std::uint32_t>(find_and_add<T>(
                options_->isa, {tile.fresh, tile.shadow, seen_}, tile.elements / kInWord, tile.base,
                tile.first / kInWord, found, digest_));
  take_words(tile, count);
  return count;
}

// Takes the changes of a tile of whole words, and adds their effect on the digest. The effect is
// computed from the changed words or, if there are many, from all words of the tile.
template <ElementBits T>
void ChangesFinder<T>::take_words(const Tile& tile, std::uint32_t count) noexcept {
  if (count > tile.elements / kManyInWord) {
    add_all(tile, tile.shadow, moved_, -1);
    add_all(tile, seen_, moved_, 1);
    return take(tile, count);
  }
  static_assert(kTile / kManyInWord <= kTakenMax);
  take_changes<T>(options_->isa,
                  {.fresh = seen_,
                   .shadow = tile.shadow,
                   .positions = room_.positions() + changed_,
                   .base = tile.base,
                   .count = count,
                   .differences = room_.differences() + changed_},
                  tile.first / kInWord, moved_);
}

template <ElementBits T>
std::uint32_t ChangesFinder<T>::find_some(const Tile& tile, std::uint16_t* found) noexcept {
  add_all(tile, tile.shadow, moved_, -1);
  const std::uint32_t count = keep_sent(tile, found, find_differing(tile, found));
  take(tile, count);
  add_all(tile, tile.shadow, moved_, 1);
  if (!options_->base_digest) add_all(tile, tile.shadow, digest_, 1);
  return count;
}

// Adds or subtracts the digest of a tile's elements.
template <ElementBits T>
void ChangesFinder<T>::add_all(const Tile& tile, const T* elements, Digest& to,
                               int sign) const noexcept {
  Digest part;
  add_elements<T>(options_->isa, elements, tile.elements, tile.first / kInWord, 0, part);
  to.first += sign < 0 ? 0U - part.first : part.first;
  to.second += sign < 0 ? 0U - part.second : part.second;
}

// Keeps the positions that are sent, and updates the ages: an unsent change becomes one pack older,
// and all other elements get age 0.
template <ElementBits T>
std::uint32_t ChangesFinder<T>::keep_sent(const Tile& tile, std::uint16_t* found,
                                          std::uint32_t count) noexcept {
  const Ages& ages = options_->ages;
  if (has_ages()) gather<std::uint8_t>(ages.counts, tile.first, tile.elements, ages_tile_.data());
  std::uint32_t kept = 0;
  std::uint32_t left = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t position = found[i];
    const std::uint32_t at = position - tile.base;
    bool is_sent = options_->threshold == 0;
    if constexpr (std::is_same_v<T, std::uint16_t>) {
      is_sent = is_sent || change_key(seen_[at], tile.shadow[at]) >= options_->threshold;
    }
    is_sent = is_sent || (has_ages() && ages_tile_[at] >= ages.limit);
    found[kept] = position;
    kept += is_sent ? 1 : 0;
    if (has_ages() && !is_sent) {
      left_[left] = static_cast<std::uint16_t>(at);
      const std::uint8_t age = ages_tile_[at];
      left_ages_[left++] = age == kOldest ? age : static_cast<std::uint8_t>(age + 1);
    }
  }
  if (!has_ages()) return kept;
  std::fill_n(ages_tile_.data(), tile.elements, std::uint8_t{0});
  for (std::uint32_t i = 0; i < left; ++i) ages_tile_[left_[i]] = left_ages_[i];
  scatter<std::uint8_t>(ages_tile_.data(), tile.elements, ages.counts, tile.first);
  return kept;
}

// Stores the differences at the `count` positions that were found in the tile.
template <ElementBits T>
void ChangesFinder<T>::note_differences(const Tile& tile, std::uint32_t count) noexcept {
  const std::uint16_t* const found = room_.positions() + changed_;
  T* const differences = room_.differences() + changed_;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t at = found[i] - tile.base;
    differences[i] = static_cast<T>(seen_[at] - tile.shadow[at]);
  }
}

// Stores the differences, and updates the tile's shadow.
template <ElementBits T>
void ChangesFinder<T>::take(const Tile& tile, std::uint32_t count) noexcept {
  note_differences(tile, count);
  const std::uint16_t* const found = room_.positions() + changed_;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t at = found[i] - tile.base;
    tile.shadow[at] = seen_[at];
  }
}

// Updates a shadow that is not a row. The tile has a copy of its elements.
template <ElementBits T>
void ChangesFinder<T>::move_box(const Tile& tile, std::uint32_t count) noexcept {
  BoxCursor<T> cursor{versions_.shadow};
  const std::uint16_t* const found = room_.positions() + changed_;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t at = found[i] - tile.base;
    cursor.at(tile.first + at) = seen_[at];
  }
}

template class ChangesFinder<std::uint8_t>;
template class ChangesFinder<std::uint16_t>;
template class ChangesFinder<std::uint32_t>;

}  // namespace rose::transfer
