// The delta codec on the CPU for Python. Arrays are taken as they are: nothing is converted.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/status.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"
#include "transfer/delta_pack.h"
#include "transfer/digest.h"
#include "transfer/simd.h"
#include "transfer/topk.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::Buffer;
using transfer::DeltaView;
using transfer::Digest;
using transfer::Isa;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Bits = Array<std::uint16_t>;

std::span<const std::uint16_t> bits_of(const Bits& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

std::span<std::uint16_t> writable_bits_of(Bits& array) {
  return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

// An instruction set by name, or the best one; refuses one that this machine lacks.
Isa isa_of(const std::optional<std::string>& name) {
  const Isa best = transfer::best_isa();
  if (!name) return best;
  const std::optional<Isa> isa = transfer::isa_named(*name);
  if (!isa) raise(Status::invalid_argument("isa '" + *name + "': choose portable, avx2 or avx512"));
  if (*isa > best) {
    raise(Status::invalid_argument("isa '" + *name + "': this machine has " +
                                   std::string{transfer::name_of(best)} + " at most"));
  }
  return *isa;
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= transfer::best_isa()) names.emplace_back(transfer::name_of(isa));
  }
  return names;
}

// An array that owns the numbers.
template <typename T>
Array<T> to_array(Buffer<T> numbers) {
  auto owner = std::make_unique<Buffer<T>>(std::move(numbers));
  const T* const data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  const py::capsule keeper{owner.get(), [](void* kept) { delete static_cast<Buffer<T>*>(kept); }};
  static_cast<void>(owner.release());
  return Array<T>{size, data, keeper};
}

py::tuple to_tuple(const Digest& digest) { return py::make_tuple(digest.first, digest.second); }

DeltaView view_of(std::uint64_t count, std::uint32_t block_elements,
                  const Array<std::uint64_t>& entries, const Array<std::uint32_t>& payload) {
  return {.count = count,
          .block_elements = block_elements,
          .entries = {entries.data(), static_cast<std::size_t>(entries.size())},
          .payload = {payload.data(), static_cast<std::size_t>(payload.size())}};
}

py::tuple delta_pack(const Bits& fresh, Bits& shadow, std::uint32_t block_elements,
                     std::uint32_t threshold, const std::optional<std::string>& isa) {
  const auto from = bits_of(fresh);
  const auto to = writable_bits_of(shadow);
  const transfer::PackOptions options{
      .block_elements = block_elements, .threshold = threshold, .isa = isa_of(isa)};
  auto packed = [&] {
    const py::gil_scoped_release release;
    return transfer::delta_pack(from, to, options);
  }();
  transfer::PackedDelta delta = take(std::move(packed));
  return py::make_tuple(to_array(std::move(delta.entries)), to_array(std::move(delta.payload)),
                        to_tuple(delta.digest));
}

void delta_check(std::uint64_t count, std::uint32_t block_elements,
                 const Array<std::uint64_t>& entries, const Array<std::uint32_t>& payload) {
  const DeltaView delta = view_of(count, block_elements, entries, payload);
  Status status;
  {
    const py::gil_scoped_release release;
    status = transfer::check_delta(delta);
  }
  check(status);
}

void delta_apply(Bits& weights, std::uint64_t count, std::uint32_t block_elements,
                 const Array<std::uint64_t>& entries, const Array<std::uint32_t>& payload,
                 bool undo) {
  const auto bits = writable_bits_of(weights);
  const DeltaView delta = view_of(count, block_elements, entries, payload);
  Status status;
  {
    const py::gil_scoped_release release;
    status = transfer::delta_apply(bits, delta, undo);
  }
  check(status);
}

std::uint32_t topk_threshold(const Bits& fresh, const Bits& shadow, std::uint64_t budget,
                             const std::optional<std::string>& isa) {
  const auto from = bits_of(fresh);
  const auto to = bits_of(shadow);
  const Isa chosen = isa_of(isa);
  auto threshold = [&] {
    const py::gil_scoped_release release;
    return transfer::topk_threshold(from, to, budget, chosen);
  }();
  return take(std::move(threshold));
}

py::tuple topk_unpack(const Bits& base, std::uint64_t count, std::uint32_t block_elements,
                      const Array<std::uint64_t>& entries, const Array<std::uint32_t>& payload) {
  const auto bits = bits_of(base);
  const DeltaView delta = view_of(count, block_elements, entries, payload);
  auto unpacked = [&] {
    const py::gil_scoped_release release;
    return transfer::topk_unpack(delta, bits);
  }();
  transfer::ChangedElements changed = take(std::move(unpacked));
  return py::make_tuple(to_array(std::move(changed.positions)),
                        to_array(std::move(changed.values)));
}

py::tuple digest(const Bits& bits, std::uint64_t first_index, std::uint64_t seed,
                 const std::optional<std::string>& isa) {
  const auto elements = bits_of(bits);
  const Isa chosen = isa_of(isa);
  auto sums = [&] {
    const py::gil_scoped_release release;
    return transfer::digest(elements, first_index, seed, chosen);
  }();
  return to_tuple(take(std::move(sums)));
}

}  // namespace

void bind_transfer(py::module_& module) {
  module.def("isa_names", &isa_names);
  module.def("delta_pack", &delta_pack, py::arg("new").noconvert(), py::arg("shadow").noconvert(),
             py::kw_only(), py::arg("block_elements"), py::arg("threshold") = 0,
             py::arg("isa") = py::none());
  module.def("delta_check", &delta_check, py::kw_only(), py::arg("count"),
             py::arg("block_elements"), py::arg("entries").noconvert(),
             py::arg("payload").noconvert());
  module.def("delta_apply", &delta_apply, py::arg("weights").noconvert(), py::kw_only(),
             py::arg("count"), py::arg("block_elements"), py::arg("entries").noconvert(),
             py::arg("payload").noconvert(), py::arg("undo") = false);
  module.def("topk_threshold", &topk_threshold, py::arg("new").noconvert(),
             py::arg("shadow").noconvert(), py::kw_only(), py::arg("budget"),
             py::arg("isa") = py::none());
  module.def("topk_unpack", &topk_unpack, py::arg("base").noconvert(), py::kw_only(),
             py::arg("count"), py::arg("block_elements"), py::arg("entries").noconvert(),
             py::arg("payload").noconvert());
  module.def("digest", &digest, py::arg("bits").noconvert(), py::kw_only(),
             py::arg("first_index") = 0, py::arg("seed") = 0, py::arg("isa") = py::none());
}

}  // namespace rose::bind
