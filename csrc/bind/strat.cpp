// STRAT on the CPU for Python. Arrays are used without conversion.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "bind/box.h"
#include "bind/class_rule.h"
#include "bind/codec_arrays.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "transfer/class_histogram.h"
#include "transfer/strat.h"
#include "transfer/wire_pack.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::ClassHistogram;
using transfer::RecodedDelta;
using transfer::StratOptions;

namespace {

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

StratOptions strat_options_of(const Rule& rule, std::uint32_t threads,
                              const std::optional<std::string>& isa) {
  return {.rule = class_rule_of(rule), .threads = threads, .isa = isa_of(isa)};
}

py::tuple recoded_tuple(RecodedDelta made) {
  return py::make_tuple(to_array(std::move(made.entries)), to_array(std::move(made.payload)));
}

template <typename T>
py::tuple strat_pack(const Array<T>& weights, const py::handle& delta, const Rule& rule,
                     bool is_after, std::uint32_t threads, const std::optional<std::string>& isa) {
  const DeltaArrays packed = arrays_of(delta);
  const StratOptions options = strat_options_of(rule, threads, isa);
  const std::span<const T> bits = span_of(weights);
  return recoded_tuple(
      take_unlocked([&] { return transfer::strat_pack(packed.view(), bits, is_after, options); }));
}

py::tuple wire_pack(const py::array& fresh, py::array& shadow, const Rule& rule,
                    std::uint32_t block_elements,
                    const std::optional<std::pair<std::uint64_t, std::uint64_t>>& base_digest,
                    std::uint32_t threads, const std::optional<std::string>& isa) {
  const StratOptions chosen = strat_options_of(rule, threads, isa);
  transfer::PackOptions options{
      .block_elements = block_elements, .isa = chosen.isa, .threads = threads};
  if (base_digest) options.base_digest = {base_digest->first, base_digest->second};
  return with_elements_of("new", fresh, [&](auto element) {
    using T = decltype(element);
    const auto from = box_of<T>("new", fresh);
    const auto to = writable_box_of<T>("shadow", shadow);
    transfer::PackedForWire made =
        take_unlocked([&] { return transfer::wire_pack(from, to, options, chosen.rule); });
    return py::tuple{py::make_tuple(
        to_array(std::move(made.delta.entries)), to_array(std::move(made.delta.payload)),
        to_tuple(made.delta.base_digest), to_tuple(made.delta.digest),
        to_array(std::move(made.wire.entries)), to_array(std::move(made.wire.payload)))};
  });
}

template <typename T>
py::tuple strat_unpack(const Array<T>& base, const py::handle& encoded, const Rule& rule,
                       std::uint32_t threads, const std::optional<std::string>& isa) {
  const DeltaArrays received = arrays_of(encoded);
  const StratOptions options = strat_options_of(rule, threads, isa);
  const std::span<const T> bits = span_of(base);
  return recoded_tuple(
      take_unlocked([&] { return transfer::strat_unpack(received.view(), bits, options); }));
}

template <typename T>
void add_to_histogram(const Array<T>& fresh, const Array<T>& shadow, Array<std::uint64_t>& rows,
                      std::uint32_t shift, std::uint32_t exponent_bits) {
  const std::span<const T> from = span_of(fresh);
  const std::span<const T> to = span_of(shadow);
  const bool is_exponent = exponent_bits <= ClassHistogram::kExponentBitsMax &&
                           std::uint64_t{shift} + exponent_bits <= transfer::kWidth<T>;
  if (from.size() != to.size() || !is_exponent ||
      std::cmp_not_equal(rows.size(), std::uint64_t{ClassHistogram::kColumns} << exponent_bits)) {
    raise(Status::invalid_argument(
        "`new` and `shadow` must have equal sizes, the exponent must lie within an element, and "
        "`rows` must have " +
        std::to_string(ClassHistogram::kColumns) + " numbers per exponent, got sizes of " +
        std::to_string(from.size()) + " and " + std::to_string(to.size()) + ", shift " +
        std::to_string(shift) + ", exponent_bits " + std::to_string(exponent_bits) + " and " +
        std::to_string(rows.size()) + " numbers"));
  }
  std::uint64_t* const counts = rows.mutable_data();
  const GilReleased released;
  transfer::add_to_histogram(from.data(), to.data(), from.size(), shift, exponent_bits, counts);
}

template <typename T>
void bind_width(py::module_& module) {
  module.def("strat_pack", &strat_pack<T>, py::arg("weights").noconvert(), py::arg("delta"),
             py::arg("rule"), py::kw_only(), py::arg("is_after") = false, py::arg("threads") = 1,
             py::arg("isa") = py::none());
  module.def("strat_unpack", &strat_unpack<T>, py::arg("base").noconvert(), py::arg("encoded"),
             py::arg("rule"), py::kw_only(), py::arg("threads") = 1, py::arg("isa") = py::none());
  module.def("add_to_histogram", &add_to_histogram<T>, py::arg("new").noconvert(),
             py::arg("shadow").noconvert(), py::arg("rows").noconvert(), py::kw_only(),
             py::arg("shift"), py::arg("exponent_bits"));
}

}  // namespace

void bind_strat(py::module_& module) {
  module.attr("HISTOGRAM_COLUMNS") = ClassHistogram::kColumns;
  module.def("wire_pack", &wire_pack, py::arg("new"), py::arg("shadow"), py::arg("rule"),
             py::kw_only(), py::arg("block_elements"), py::arg("base_digest") = py::none(),
             py::arg("threads") = 1, py::arg("isa") = py::none());
  bind_width<std::uint8_t>(module);
  bind_width<std::uint16_t>(module);
  bind_width<std::uint32_t>(module);
}

}  // namespace rose::bind
