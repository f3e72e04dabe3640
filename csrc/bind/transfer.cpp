// The delta codec on the CPU for Python. Arrays are used without conversion.
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

#include "bind/box.h"
#include "bind/codec_arrays.h"
#include "bind/status.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"
#include "transfer/delta_merge.h"
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

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= transfer::best_isa()) names.emplace_back(transfer::name_of(isa));
  }
  return names;
}

using Pair = std::pair<std::uint64_t, std::uint64_t>;

Digest digest_of(const Pair& pair) { return {pair.first, pair.second}; }

transfer::PackOptions options_of(std::uint32_t block_elements, std::uint32_t threshold,
                                 std::optional<py::array>& ages, std::uint32_t age_limit,
                                 bool moves_ages, const std::optional<std::string>& isa,
                                 std::uint32_t threads) {
  transfer::PackOptions options{.block_elements = block_elements,
                                .threshold = threshold,
                                .isa = isa_of(isa),
                                .threads = threads};
  if (!ages) return options;
  options.ages.limit = age_limit;
  if (moves_ages) {
    options.ages.counts = writable_box_of<std::uint8_t>("ages", *ages);
  } else {
    const auto looked_at = box_of<std::uint8_t>("ages", *ages);
    options.ages.counts = {const_cast<std::uint8_t*>(looked_at.data), looked_at.shape};
  }
  return options;
}

py::tuple delta_pack(const py::array& fresh, py::array& shadow, std::uint32_t block_elements,
                     std::uint32_t threshold, std::optional<py::array> ages,
                     std::uint32_t age_limit, const std::optional<Pair>& base_digest,
                     const std::optional<std::string>& isa, std::uint32_t threads) {
  auto options = options_of(block_elements, threshold, ages, age_limit, true, isa, threads);
  if (base_digest) options.base_digest = digest_of(*base_digest);
  return with_elements_of("new", fresh, [&](auto element) {
    using T = decltype(element);
    const auto from = box_of<T>("new", fresh);
    const auto to = writable_box_of<T>("shadow", shadow);
    transfer::PackedDelta delta =
        take_unlocked([&] { return transfer::delta_pack(from, to, options); });
    return py::tuple{py::make_tuple(to_array(std::move(delta.entries)),
                                    to_array(std::move(delta.payload)), to_tuple(delta.base_digest),
                                    to_tuple(delta.digest))};
  });
}

void delta_check(const py::object& delta) {
  const DeltaArrays arrays = arrays_of(delta);
  check_unlocked([&] { return transfer::check_delta(arrays.view()); });
}

void delta_apply(py::array& weights, const py::object& delta, bool undo, bool is_checked) {
  const DeltaArrays arrays = arrays_of(delta);
  const transfer::ApplyOptions options{.is_undone = undo, .is_checked = is_checked};
  with_elements_of("weights", weights, [&](auto element) {
    const auto box = writable_box_of<decltype(element)>("weights", weights);
    check_unlocked([&] { return transfer::delta_apply(box, arrays.view(), options); });
  });
}

void delta_verify(const py::array& weights, const py::object& delta, const Pair& base_digest,
                  const Pair& digest, bool undo) {
  const DeltaArrays arrays = arrays_of(delta);
  with_elements_of("weights", weights, [&](auto element) {
    const auto box = box_of<decltype(element)>("weights", weights);
    check_unlocked([&] {
      return transfer::delta_verify(box, arrays.view(), digest_of(base_digest), digest_of(digest),
                                    undo);
    });
  });
}

py::tuple delta_merge(const py::object& first, const py::object& second) {
  const DeltaArrays one = arrays_of(first);
  const DeltaArrays other = arrays_of(second);
  transfer::MergedDelta merged =
      take_unlocked([&] { return transfer::delta_merge(one.view(), other.view()); });
  return py::make_tuple(to_array(std::move(merged.entries)), to_array(std::move(merged.payload)));
}

std::uint32_t topk_threshold(const py::array& fresh, const py::array& shadow, std::uint64_t budget,
                             std::optional<py::array> ages, std::uint32_t age_limit,
                             const std::optional<std::string>& isa, std::uint32_t threads) {
  const auto options =
      options_of(transfer::kBlockElementsMax, 0, ages, age_limit, false, isa, threads);
  const auto from = box_of<std::uint16_t>("new", fresh);
  const auto to = box_of<std::uint16_t>("shadow", shadow);
  return take_unlocked([&] { return transfer::topk_threshold(from, to, budget, options); });
}

py::tuple topk_unpack(const py::array& base, const py::object& delta) {
  const DeltaArrays arrays = arrays_of(delta);
  return with_elements_of("base", base, [&](auto element) {
    const auto box = box_of<decltype(element)>("base", base);
    auto changed = take_unlocked([&] { return transfer::topk_unpack(arrays.view(), box); });
    return py::tuple{py::make_tuple(to_array(std::move(changed.positions)),
                                    to_array(std::move(changed.values)))};
  });
}

py::tuple digest(const py::array& bits, std::uint64_t first_index, std::uint64_t seed,
                 const std::optional<std::string>& isa, std::uint32_t threads) {
  const transfer::DigestOptions options{
      .first_index = first_index, .seed = seed, .isa = isa_of(isa), .threads = threads};
  return with_elements_of("bits", bits, [&](auto element) {
    const auto box = box_of<decltype(element)>("bits", bits);
    return to_tuple(take_unlocked([&] { return transfer::digest(box, options); }));
  });
}

}  // namespace

void bind_transfer(py::module_& module) {
  module.def("isa_names", &isa_names);
  module.def("delta_pack", &delta_pack, py::arg("new").noconvert(), py::arg("shadow").noconvert(),
             py::kw_only(), py::arg("block_elements"), py::arg("threshold") = 0,
             py::arg("ages").noconvert() = py::none(), py::arg("age_limit") = 0,
             py::arg("base_digest") = py::none(), py::arg("isa") = py::none(),
             py::arg("threads") = 1);
  module.def("delta_check", &delta_check, py::arg("delta"));
  module.def("delta_apply", &delta_apply, py::arg("weights").noconvert(), py::arg("delta"),
             py::kw_only(), py::arg("undo") = false, py::arg("is_checked") = false);
  module.def("delta_verify", &delta_verify, py::arg("weights").noconvert(), py::arg("delta"),
             py::kw_only(), py::arg("base_digest"), py::arg("digest"), py::arg("undo") = false);
  module.def("delta_merge", &delta_merge, py::arg("first"), py::arg("second"));
  module.def("topk_threshold", &topk_threshold, py::arg("new").noconvert(),
             py::arg("shadow").noconvert(), py::kw_only(), py::arg("budget"),
             py::arg("ages").noconvert() = py::none(), py::arg("age_limit") = 0,
             py::arg("isa") = py::none(), py::arg("threads") = 1);
  module.def("topk_unpack", &topk_unpack, py::arg("base").noconvert(), py::arg("delta"));
  module.def("digest", &digest, py::arg("bits").noconvert(), py::kw_only(),
             py::arg("first_index") = 0, py::arg("seed") = 0, py::arg("isa") = py::none(),
             py::arg("threads") = 1);
}

}  // namespace rose::bind
