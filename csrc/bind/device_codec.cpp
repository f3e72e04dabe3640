// The delta codec on a GPU for Python. Addresses are numbers, as `tensor.data_ptr()` gives them.
#include <pybind11/pybind11.h>

#include <bit>
#include <cstdint>
#include <memory>

#include "bind/status.h"
#include "transfer/device_codec.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using transfer::DeviceCodec;

namespace {

// An address of the device. Not a pointer to anything for this process.
using Address = std::uint64_t;

template <typename T>
T* at(Address address) {
  return std::bit_cast<T*>(address);
}
CUstream stream_of(std::uint64_t handle) { return std::bit_cast<CUstream>(handle); }

// A launch may wait for a lock of the driver's that another thread holds, so never with the GIL.
template <typename Call>
auto unlocked(Call call) {
  const py::gil_scoped_release release;
  return call();
}

std::shared_ptr<DeviceCodec> create(std::shared_ptr<Device> device) {
  auto codec = unlocked([&] { return DeviceCodec::create(std::move(device)); });
  return std::const_pointer_cast<DeviceCodec>(take(std::move(codec)));  // it has const calls only
}

void delta_pack(const DeviceCodec& codec, Address bits, Address shadow, std::uint64_t count,
                std::uint32_t block_elements, Address arena, std::uint64_t arena_words,
                Address cursor, Address entries, Address offsets, std::uint64_t stream,
                Address threshold, Address digest, std::uint64_t first_index, std::uint64_t seed) {
  const kernels::DeltaPackParams params{.bits = at<std::uint16_t>(bits),
                                        .shadow = at<std::uint16_t>(shadow),
                                        .count = count,
                                        .threshold = at<std::uint32_t>(threshold),
                                        .arena = at<std::uint32_t>(arena),
                                        .arena_words = arena_words,
                                        .cursor = at<std::uint64_t>(cursor),
                                        .entries = at<std::uint64_t>(entries),
                                        .offsets = at<std::uint64_t>(offsets),
                                        .digest = at<std::uint64_t>(digest),
                                        .first_index = first_index,
                                        .seed = seed};
  check(unlocked([&] { return codec.delta_pack(params, block_elements, stream_of(stream)); }));
}

void delta_apply(const DeviceCodec& codec, Address entries, Address offsets, Address payload,
                 std::uint64_t payload_words, Address weights, std::uint64_t count,
                 std::uint32_t block_elements, Address bad_block, std::uint64_t stream, bool undo) {
  const kernels::DeltaApplyParams params{.entries = at<std::uint64_t>(entries),
                                         .offsets = at<std::uint64_t>(offsets),
                                         .payload = at<std::uint32_t>(payload),
                                         .payload_words = payload_words,
                                         .weights = at<std::uint16_t>(weights),
                                         .count = count,
                                         .bad_block = at<std::uint64_t>(bad_block),
                                         .is_undo = undo ? 1U : 0U};
  check(unlocked([&] { return codec.delta_apply(params, block_elements, stream_of(stream)); }));
}

void topk_unpack(const DeviceCodec& codec, Address entries, Address offsets, Address first_outputs,
                 Address payload, std::uint64_t payload_words, Address base, std::uint64_t count,
                 std::uint32_t block_elements, Address positions, Address values,
                 std::uint64_t output_count, Address bad_block, std::uint64_t stream) {
  const kernels::TopkUnpackParams params{.entries = at<std::uint64_t>(entries),
                                         .offsets = at<std::uint64_t>(offsets),
                                         .first_outputs = at<std::uint64_t>(first_outputs),
                                         .payload = at<std::uint32_t>(payload),
                                         .payload_words = payload_words,
                                         .base = at<std::uint16_t>(base),
                                         .count = count,
                                         .positions = at<std::int64_t>(positions),
                                         .values = at<std::uint16_t>(values),
                                         .output_count = output_count,
                                         .bad_block = at<std::uint64_t>(bad_block)};
  check(unlocked([&] { return codec.topk_unpack(params, block_elements, stream_of(stream)); }));
}

void topk_histogram(const DeviceCodec& codec, Address bits, Address shadow, std::uint64_t count,
                    Address histogram, std::uint64_t stream) {
  const kernels::TopkHistogramParams params{.bits = at<std::uint16_t>(bits),
                                            .shadow = at<std::uint16_t>(shadow),
                                            .count = count,
                                            .histogram = at<std::uint64_t>(histogram)};
  check(unlocked([&] { return codec.topk_histogram(params, stream_of(stream)); }));
}

void topk_threshold(const DeviceCodec& codec, Address histogram, std::uint64_t budget,
                    Address threshold, std::uint64_t stream) {
  const kernels::TopkThresholdParams params{.histogram = at<std::uint64_t>(histogram),
                                            .budget = budget,
                                            .threshold = at<std::uint32_t>(threshold)};
  check(unlocked([&] { return codec.topk_threshold(params, stream_of(stream)); }));
}

void digest(const DeviceCodec& codec, Address bits, std::uint64_t count, Address sums,
            std::uint64_t stream, std::uint64_t first_index, std::uint64_t seed) {
  const kernels::DigestParams params{.bits = at<std::uint16_t>(bits),
                                     .count = count,
                                     .first_index = first_index,
                                     .seed = seed,
                                     .sums = at<std::uint64_t>(sums)};
  check(unlocked([&] { return codec.digest(params, stream_of(stream)); }));
}

}  // namespace

void bind_device_codec(py::module_& module) {
  py::class_<DeviceCodec, std::shared_ptr<DeviceCodec>>(module, "DeviceCodec",
                                                        py::release_gil_before_calling_cpp_dtor())
      .def_static("create", &create, py::arg("device").none(false))
      .def("delta_pack", &delta_pack, py::kw_only(), py::arg("bits"), py::arg("shadow"),
           py::arg("count"), py::arg("block_elements"), py::arg("arena"), py::arg("arena_words"),
           py::arg("cursor"), py::arg("entries"), py::arg("offsets"), py::arg("stream"),
           py::arg("threshold") = 0, py::arg("digest") = 0, py::arg("first_index") = 0,
           py::arg("seed") = 0)
      .def("delta_apply", &delta_apply, py::kw_only(), py::arg("entries"), py::arg("offsets"),
           py::arg("payload"), py::arg("payload_words"), py::arg("weights"), py::arg("count"),
           py::arg("block_elements"), py::arg("bad_block"), py::arg("stream"),
           py::arg("undo") = false)
      .def("topk_unpack", &topk_unpack, py::kw_only(), py::arg("entries"), py::arg("offsets"),
           py::arg("first_outputs"), py::arg("payload"), py::arg("payload_words"), py::arg("base"),
           py::arg("count"), py::arg("block_elements"), py::arg("positions"), py::arg("values"),
           py::arg("output_count"), py::arg("bad_block"), py::arg("stream"))
      .def("topk_histogram", &topk_histogram, py::kw_only(), py::arg("bits"), py::arg("shadow"),
           py::arg("count"), py::arg("histogram"), py::arg("stream"))
      .def("topk_threshold", &topk_threshold, py::kw_only(), py::arg("histogram"),
           py::arg("budget"), py::arg("threshold"), py::arg("stream"))
      .def("digest", &digest, py::kw_only(), py::arg("bits"), py::arg("count"), py::arg("sums"),
           py::arg("stream"), py::arg("first_index") = 0, py::arg("seed") = 0);
}

}  // namespace rose::bind
