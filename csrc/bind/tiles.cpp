// Calls of the codec for many tiles in host memory, for Python. Arrays are used without conversion.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/box.h"
#include "bind/class_rule.h"
#include "bind/codec_arrays.h"
#include "bind/status.h"
#include "transfer/digest.h"
#include "transfer/pack_tiles.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::Digest;

namespace {

using Pair = std::pair<std::uint64_t, std::uint64_t>;

// Up to this size an array with a copy of the numbers is cheaper than an array that owns them.
constexpr std::size_t kCopiedBytes = 4096;

// Returns a 1-d array of the numbers that cannot be written to.
template <typename T>
Array<T> to_constant(transfer::Buffer<T> numbers) {
  const std::size_t size = numbers.size();
  const bool is_copied = sizeof(T) * size <= kCopiedBytes;
  Array<T> array = is_copied ? Array<T>(static_cast<py::ssize_t>(size), numbers.data())
                             : to_array(std::move(numbers));
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

py::object to_object(std::optional<transfer::PackedTile> tile, bool has_wire) {
  if (!tile) return py::none();
  auto& [delta, wire] = *tile;
  auto entries = to_constant(std::move(delta.entries));
  auto payload = to_constant(std::move(delta.payload));
  if (!has_wire) {
    return py::make_tuple(std::move(entries), std::move(payload), to_tuple(delta.base_digest),
                          to_tuple(delta.digest));
  }
  return py::make_tuple(std::move(entries), std::move(payload), to_tuple(delta.base_digest),
                        to_tuple(delta.digest), to_constant(std::move(wire.entries)),
                        to_constant(std::move(wire.payload)));
}

py::list pack_tiles(const std::vector<py::array>& fresh, std::vector<py::array>& shadow,
                    const std::vector<Pair>& base_digests, std::uint32_t block_elements,
                    const std::optional<Rule>& rule, std::uint32_t threads,
                    const std::optional<std::string>& isa) {
  if (fresh.size() != shadow.size() || fresh.size() != base_digests.size()) {
    raise(Status::invalid_argument("new, shadow and base_digests must have one entry per tile"));
  }
  std::vector<transfer::TileVersions> tiles;
  tiles.reserve(fresh.size());
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    with_elements_of("new", fresh[i], [&](auto element) {
      using T = decltype(element);
      tiles.push_back({.versions = transfer::Versions<T>{box_of<T>("new", fresh[i]),
                                                         writable_box_of<T>("shadow", shadow[i])},
                       .base_digest = {base_digests[i].first, base_digests[i].second}});
    });
  }
  const transfer::PackOptions options{
      .block_elements = block_elements, .isa = isa_of(isa), .threads = threads};
  const auto chosen = rule ? std::optional{class_rule_of(*rule)} : std::nullopt;
  auto packed = take_unlocked([&] { return transfer::pack_tiles(tiles, options, chosen); });
  py::list made{packed.size()};
  for (std::size_t i = 0; i < packed.size(); ++i) {
    made[i] = to_object(std::move(packed[i]), rule.has_value());
  }
  return made;
}

py::list digests(const std::vector<py::array>& tiles, const std::optional<std::string>& isa) {
  const transfer::DigestOptions options{.isa = isa_of(isa)};
  py::list found{tiles.size()};
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    found[i] = with_elements_of("bits", tiles[i], [&](auto element) {
      const auto box = box_of<decltype(element)>("bits", tiles[i]);
      return to_tuple(take_unlocked([&] { return transfer::digest(box, options); }));
    });
  }
  return found;
}

}  // namespace

void bind_tiles(py::module_& module) {
  module.def("pack_tiles", &pack_tiles, py::arg("new").noconvert(), py::arg("shadow").noconvert(),
             py::arg("base_digests"), py::kw_only(), py::arg("block_elements"),
             py::arg("rule") = py::none(), py::arg("threads") = 1, py::arg("isa") = py::none());
  // NumPy's own `array.ctypes.data` takes five times as long.
  module.def(
      "address_of",
      [](const py::array& array) { return reinterpret_cast<std::uintptr_t>(array.data()); },
      py::arg("array").noconvert());
  module.def("digests", &digests, py::arg("tiles").noconvert(), py::kw_only(),
             py::arg("isa") = py::none());
}

}  // namespace rose::bind
