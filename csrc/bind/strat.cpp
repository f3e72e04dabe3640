// STRAT on the CPU for Python. Arrays are taken as they are: nothing is converted.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "bind/codec_arrays.h"
#include "bind/status.h"
#include "transfer/class_histogram.h"
#include "transfer/strat.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::ClassHistogram;
using transfer::ClassRule;
using transfer::DeltaView;
using transfer::RecodedDelta;
using transfer::StratOptions;

namespace {

using Entries = Array<std::uint64_t>;
using Payload = Array<std::uint32_t>;
// shift, exponent_bits, origin, all_mask, magnitude_bits
using Rule = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                        std::array<std::uint8_t, transfer::kClasses>>;

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
DeltaView view_of(std::uint64_t count, std::uint32_t block_elements, const Entries& entries,
                  const Payload& payload) {
  return {.count = count,
          .block_elements = block_elements,
          .width = transfer::kWidth<T>,
          .entries = span_of(entries),
          .payload = span_of(payload)};
}

StratOptions options_of(const Rule& rule, std::uint32_t threads,
                        const std::optional<std::string>& isa) {
  const auto& [shift, exponent_bits, origin, all_mask, magnitude_bits] = rule;
  return {.rule = {.shift = shift,
                   .exponent_bits = exponent_bits,
                   .origin = origin,
                   .all_mask = all_mask,
                   .magnitude_bits = magnitude_bits},
          .threads = threads,
          .isa = isa_of(isa)};
}

py::tuple to_tuple(Result<RecodedDelta> result) {
  RecodedDelta made = take(std::move(result));
  return py::make_tuple(to_array(std::move(made.entries)), to_array(std::move(made.payload)));
}

template <typename T>
py::tuple strat_pack(const Array<T>& weights, std::uint64_t count, std::uint32_t block_elements,
                     const Entries& entries, const Payload& payload, const Rule& rule,
                     bool is_after, std::uint32_t threads, const std::optional<std::string>& isa) {
  const DeltaView delta = view_of<T>(count, block_elements, entries, payload);
  const StratOptions options = options_of(rule, threads, isa);
  const std::span<const T> bits = span_of(weights);
  return to_tuple([&] {
    const py::gil_scoped_release release;
    return transfer::strat_pack(delta, bits, is_after, options);
  }());
}

template <typename T>
py::tuple strat_unpack(const Array<T>& base, std::uint64_t count, std::uint32_t block_elements,
                       const Entries& entries, const Payload& payload, const Rule& rule,
                       std::uint32_t threads, const std::optional<std::string>& isa) {
  const DeltaView link = view_of<T>(count, block_elements, entries, payload);
  const StratOptions options = options_of(rule, threads, isa);
  const std::span<const T> bits = span_of(base);
  return to_tuple([&] {
    const py::gil_scoped_release release;
    return transfer::strat_unpack(link, bits, options);
  }());
}

template <typename T>
void add_to_histogram(const Array<T>& fresh, const Array<T>& shadow, Entries& rows,
                      std::uint32_t shift, std::uint32_t exponent_bits) {
  const std::span<const T> from = span_of(fresh);
  const std::span<const T> to = span_of(shadow);
  const bool is_exponent = exponent_bits <= ClassHistogram::kExponentBitsMax &&
                           shift + exponent_bits <= transfer::kWidth<T>;
  const std::uint64_t size = std::uint64_t{ClassHistogram::kColumns} << exponent_bits;
  if (from.size() != to.size() || !is_exponent || std::cmp_not_equal(rows.size(), size)) {
    raise(Status::invalid_argument("a histogram of " + std::to_string(rows.size()) +
                                   " numbers does not fit the exponents of these elements"));
  }
  std::uint64_t* const counts = rows.mutable_data();
  const py::gil_scoped_release release;
  transfer::add_to_histogram(from.data(), to.data(), from.size(), shift, exponent_bits, counts);
}

template <typename T>
void bind_width(py::module_& module) {
  module.def("strat_pack", &strat_pack<T>, py::arg("weights").noconvert(), py::kw_only(),
             py::arg("count"), py::arg("block_elements"), py::arg("entries").noconvert(),
             py::arg("payload").noconvert(), py::arg("rule"), py::arg("is_after") = false,
             py::arg("threads") = 1, py::arg("isa") = py::none());
  module.def("strat_unpack", &strat_unpack<T>, py::arg("base").noconvert(), py::kw_only(),
             py::arg("count"), py::arg("block_elements"), py::arg("entries").noconvert(),
             py::arg("payload").noconvert(), py::arg("rule"), py::arg("threads") = 1,
             py::arg("isa") = py::none());
  module.def("add_to_histogram", &add_to_histogram<T>, py::arg("new").noconvert(),
             py::arg("shadow").noconvert(), py::arg("rows").noconvert(), py::kw_only(),
             py::arg("shift"), py::arg("exponent_bits"));
}

}  // namespace

void bind_strat(py::module_& module) {
  module.attr("HISTOGRAM_COLUMNS") = ClassHistogram::kColumns;
  bind_width<std::uint8_t>(module);
  bind_width<std::uint16_t>(module);
  bind_width<std::uint32_t>(module);
}

}  // namespace rose::bind
