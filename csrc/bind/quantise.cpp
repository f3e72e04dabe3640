// Quantised weights for Python: on the CPU with arrays, on a GPU with addresses as numbers.
#include "transfer/quantise.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bind/arrays.h"
#include "bind/stream.h"
#include "bind/unlocked.h"
#include "transfer/device_quantise.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::CodeKind;
using transfer::DeviceQuantiser;
using transfer::MatrixView;
using transfer::ScaleBlock;

namespace {

CodeKind kind_of(std::string_view name) {
  const std::optional<CodeKind> kind = transfer::code_kind_named(name);
  if (!kind) raise(Status::invalid_argument("to '" + std::string{name} + "': choose fp8 or int8"));
  return *kind;
}

std::uint64_t size_of(const py::array& array, py::ssize_t axis) {
  return static_cast<std::uint64_t>(array.shape(axis));
}

template <typename T>
void check_matrix(const char* name, const py::array_t<T>& array) {
  if (array.ndim() != 2) {
    raise(Status::invalid_argument(std::string{name} + " has " + std::to_string(array.ndim()) +
                                   " dimensions: pass a matrix"));
  }
}

// Describes a matrix whose rows may have a stride; the elements of each row must be contiguous.
MatrixView matrix_of(const py::array_t<std::uint16_t>& array) {
  check_matrix("weights", array);
  constexpr py::ssize_t kItem = sizeof(std::uint16_t);
  const MatrixView matrix{.bits = array.data(),
                          .rows = size_of(array, 0),
                          .cols = size_of(array, 1),
                          .row_stride = static_cast<std::uint64_t>(array.strides(0) / kItem)};
  const bool is_row = matrix.cols <= 1 || array.strides(1) == kItem;
  const bool is_apart = matrix.rows <= 1 || (array.strides(0) > 0 && array.strides(0) % kItem == 0);
  if (matrix.rows != 0 && matrix.cols != 0 && !(is_row && is_apart)) {
    raise(Status::invalid_argument("weights have strides of " + std::to_string(array.strides(0)) +
                                   " and " + std::to_string(array.strides(1)) +
                                   " bytes: rows must be contiguous and in ascending order"));
  }
  return matrix;
}

py::tuple quantise(const py::array_t<std::uint16_t>& weights, std::string_view to,
                   std::uint64_t block_rows, std::uint64_t block_cols,
                   const std::optional<std::string>& isa) {
  const MatrixView matrix = matrix_of(weights);
  const CodeKind kind = kind_of(to);
  const ScaleBlock block{.rows = block_rows, .cols = block_cols};
  const transfer::Isa chosen = isa_of(isa);
  auto made = [&] {
    const py::gil_scoped_release release;
    return transfer::quantise(matrix, kind, block, chosen);
  }();
  transfer::Quantised quantised = take(std::move(made));
  const auto down = static_cast<py::ssize_t>(block.along_rows(matrix.rows));
  const auto across = static_cast<py::ssize_t>(block.along_cols(matrix.cols));
  return py::make_tuple(
      to_array_of({weights.shape(0), weights.shape(1)}, std::move(quantised.codes)),
      to_array_of({down, across}, std::move(quantised.scales)));
}

using Codes = py::array_t<std::uint8_t, py::array::c_style>;
using Scales = py::array_t<float, py::array::c_style>;

py::array_t<std::uint16_t> dequantise(const Codes& codes, const Scales& scales, std::string_view to,
                                      std::uint64_t block_rows, std::uint64_t block_cols) {
  check_matrix<std::uint8_t>("codes", codes);
  check_matrix<float>("scales", scales);
  const transfer::QuantisedView from{
      .codes = {codes.data(), static_cast<std::size_t>(codes.size())},
      .scales = {scales.data(), static_cast<std::size_t>(scales.size())},
      .rows = size_of(codes, 0),
      .cols = size_of(codes, 1)};
  const CodeKind kind = kind_of(to);
  const ScaleBlock block{.rows = block_rows, .cols = block_cols};
  auto made = [&] {
    const py::gil_scoped_release release;
    return transfer::dequantise(from, kind, block);
  }();
  return to_array_of({codes.shape(0), codes.shape(1)}, take(std::move(made)));
}

std::shared_ptr<DeviceQuantiser> create_quantiser(std::shared_ptr<driver::Device> device) {
  auto quantiser = take_unlocked([&] { return DeviceQuantiser::create(std::move(device)); });
  return std::const_pointer_cast<DeviceQuantiser>(std::move(quantiser));  // only const calls
}

void quantise_on_device(const DeviceQuantiser& quantiser, Address bits, std::uint64_t rows,
                        std::uint64_t cols, std::uint64_t row_stride, std::string_view to,
                        std::uint64_t block_rows, std::uint64_t block_cols, Address codes,
                        Address scales, std::uint64_t stream) {
  const kernels::QuantiseParams params{.bits = std::bit_cast<const std::uint16_t*>(bits),
                                       .rows = rows,
                                       .cols = cols,
                                       .row_stride = row_stride,
                                       .block_rows = block_rows,
                                       .block_cols = block_cols,
                                       .codes = std::bit_cast<std::uint8_t*>(codes),
                                       .scales = std::bit_cast<float*>(scales),
                                       .kind = kind_of(to)};
  check_unlocked([&] { return quantiser.quantise(params, stream_of(stream)); });
}

}  // namespace

void bind_quantise(py::module_& module) {
  module.def("quantise", &quantise, py::arg("weights").noconvert(), py::kw_only(), py::arg("to"),
             py::arg("block_rows"), py::arg("block_cols"), py::arg("isa") = py::none());
  module.def("dequantise", &dequantise, py::arg("codes").noconvert(), py::arg("scales").noconvert(),
             py::kw_only(), py::arg("to"), py::arg("block_rows"), py::arg("block_cols"));
  py::class_<DeviceQuantiser, std::shared_ptr<DeviceQuantiser>>(
      module, "DeviceQuantiser", py::release_gil_before_calling_cpp_dtor())
      .def_static("create", &create_quantiser, py::arg("device").none(false))
      .def("quantise", &quantise_on_device, py::kw_only(), py::arg("bits"), py::arg("rows"),
           py::arg("cols"), py::arg("row_stride"), py::arg("to"), py::arg("block_rows"),
           py::arg("block_cols"), py::arg("codes"), py::arg("scales"), py::arg("stream"));
}

}  // namespace rose::bind
