// The delta codec on a GPU for Python. Addresses are numbers, as `tensor.data_ptr()` gives them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/stream.h"
#include "bind/unlocked.h"
#include "transfer/device_box.h"
#include "transfer/device_codec.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using transfer::DeviceCodec;

namespace {

template <typename T>
T* at(Address address) {
  return std::bit_cast<T*>(address);
}

std::shared_ptr<DeviceCodec> create_codec(std::shared_ptr<Device> device) {
  auto codec = take_unlocked([&] { return DeviceCodec::create(std::move(device)); });
  return std::const_pointer_cast<DeviceCodec>(std::move(codec));  // it has only const calls
}

// Memory layout of an array: nothing for contiguous elements; otherwise the sizes of the three
// inner dimensions and the strides of all four, in elements, as in `rose.kernels.box`.
using Lie = std::optional<std::array<std::uint64_t, 7>>;

kernels::Box box_at(Address address, const Lie& lie, std::uint64_t count) {
  transfer::DeviceShape shape = transfer::DeviceShape::row(count);
  if (lie) {
    const auto& one = *lie;
    shape = {.sizes = {one[0], one[1], one[2]}, .strides = {one[3], one[4], one[5], one[6]}};
  }
  return transfer::device_box(at<std::uint8_t>(address), shape);
}

// One number per array.
using Numbers = std::vector<std::uint64_t>;

// A call for several arrays passes its arguments as columns. Each column must have one entry per
// array.
void check_columns(std::size_t arrays, std::initializer_list<std::size_t> sizes) {
  for (const std::size_t size : sizes) {
    if (size == arrays) continue;
    raise(Status::invalid_argument("pass one value per array: got " + std::to_string(size) +
                                   " for " + std::to_string(arrays) + " arrays"));
  }
}

void device_delta_pack(const DeviceCodec& codec, const Numbers& bits, const Numbers& shadow,
                       const Numbers& width, const Numbers& count, const Numbers& entries,
                       const Numbers& offsets, const Numbers& digest,
                       const std::vector<Lie>& bits_box, const std::vector<Lie>& shadow_box,
                       std::uint64_t block_elements, Address arena, std::uint64_t arena_words,
                       Address newest, std::uint64_t stream, Address threshold, Address ages,
                       std::uint64_t age_limit, std::uint64_t first_index, std::uint64_t seed) {
  check_columns(bits.size(), {shadow.size(), width.size(), count.size(), entries.size(),
                              offsets.size(), digest.size(), bits_box.size(), shadow_box.size()});
  std::vector<kernels::DeltaPackParams> arrays(bits.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    arrays[i] = {.bits = box_at(bits[i], bits_box[i], count[i]),
                 .shadow = box_at(shadow[i], shadow_box[i], count[i]),
                 .width = width[i],
                 .count = count[i],
                 .block_elements = block_elements,
                 .threshold = at<std::uint32_t>(threshold),
                 .ages = at<std::uint8_t>(ages),
                 .age_limit = age_limit,
                 .arena = at<std::uint32_t>(arena),
                 .arena_words = arena_words,
                 .newest = at<std::uint64_t>(newest),
                 .first_block = 0,
                 .entries = at<std::uint64_t>(entries[i]),
                 .offsets = at<std::uint64_t>(offsets[i]),
                 .digest = at<std::uint64_t>(digest[i]),
                 .first_index = first_index,
                 .seed = seed};
  }
  check_unlocked([&] { return codec.delta_pack(arrays, stream_of(stream)); });
}

void device_delta_apply(const DeviceCodec& codec, const Numbers& entries, const Numbers& offsets,
                        const Numbers& payload, const Numbers& payload_words,
                        const Numbers& weights, const Numbers& width, const Numbers& count,
                        const Numbers& digest, const std::vector<Lie>& weights_box,
                        const Numbers& block_elements, Address bad_block, std::uint64_t stream,
                        bool undo) {
  check_columns(entries.size(),
                {offsets.size(), payload.size(), payload_words.size(), weights.size(), width.size(),
                 count.size(), digest.size(), weights_box.size(), block_elements.size()});
  std::vector<kernels::ApplyArray> arrays(entries.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    arrays[i] = {.entries = at<std::uint64_t>(entries[i]),
                 .offsets = at<std::uint64_t>(offsets[i]),
                 .payload = at<std::uint32_t>(payload[i]),
                 .payload_words = payload_words[i],
                 .weights = box_at(weights[i], weights_box[i], count[i]),
                 .width = width[i],
                 .count = count[i],
                 .first_cta = 0,
                 .digest = at<std::uint64_t>(digest[i])};
  }
  const DeviceCodec::Apply apply{arrays, block_elements, at<std::uint64_t>(bad_block), undo};
  check_unlocked([&] { return codec.delta_apply(apply, stream_of(stream)); });
}

void device_topk_unpack(const DeviceCodec& codec, Address entries, Address offsets,
                        Address first_outputs, Address payload, std::uint64_t payload_words,
                        Address base, std::uint64_t width, std::uint64_t count,
                        std::uint64_t block_elements, Address positions, Address values,
                        std::uint64_t output_count, Address bad_block, std::uint64_t stream,
                        const Lie& base_box) {
  const kernels::TopkUnpackParams params{.entries = at<std::uint64_t>(entries),
                                         .offsets = at<std::uint64_t>(offsets),
                                         .first_outputs = at<std::uint64_t>(first_outputs),
                                         .payload = at<std::uint32_t>(payload),
                                         .payload_words = payload_words,
                                         .base = box_at(base, base_box, count),
                                         .width = width,
                                         .count = count,
                                         .block_elements = block_elements,
                                         .positions = at<std::int64_t>(positions),
                                         .values = at<std::uint8_t>(values),
                                         .output_count = output_count,
                                         .bad_block = at<std::uint64_t>(bad_block)};
  check_unlocked([&] { return codec.topk_unpack(params, stream_of(stream)); });
}

void device_topk_histogram(const DeviceCodec& codec, Address bits, Address shadow,
                           std::uint64_t count, Address histogram, std::uint64_t stream,
                           const Lie& bits_box, const Lie& shadow_box, Address ages,
                           std::uint64_t age_limit) {
  const kernels::TopkHistogramParams params{.bits = box_at(bits, bits_box, count),
                                            .shadow = box_at(shadow, shadow_box, count),
                                            .count = count,
                                            .ages = at<std::uint8_t>(ages),
                                            .age_limit = age_limit,
                                            .histogram = at<std::uint64_t>(histogram)};
  check_unlocked([&] { return codec.topk_histogram(params, stream_of(stream)); });
}

void device_topk_threshold(const DeviceCodec& codec, Address histogram, std::uint64_t budget,
                           Address threshold, std::uint64_t stream) {
  const kernels::TopkThresholdParams params{.histogram = at<std::uint64_t>(histogram),
                                            .budget = budget,
                                            .threshold = at<std::uint32_t>(threshold)};
  check_unlocked([&] { return codec.topk_threshold(params, stream_of(stream)); });
}

void device_digest(const DeviceCodec& codec, Address bits, std::uint64_t width, std::uint64_t count,
                   Address sums, std::uint64_t stream, const Lie& bits_box,
                   std::uint64_t first_index, std::uint64_t seed) {
  const kernels::DigestParams params{.bits = box_at(bits, bits_box, count),
                                     .width = width,
                                     .count = count,
                                     .first_index = first_index,
                                     .seed = seed,
                                     .sums = at<std::uint64_t>(sums)};
  check_unlocked([&] { return codec.digest(params, stream_of(stream)); });
}

}  // namespace

void bind_device_codec(py::module_& module) {
  UnlockedClass<DeviceCodec, std::shared_ptr<DeviceCodec>>(module, "DeviceCodec")
      .def_static("create", &create_codec, py::arg("device").none(false))
      .def("delta_pack", &device_delta_pack, py::kw_only(), py::arg("bits"), py::arg("shadow"),
           py::arg("width"), py::arg("count"), py::arg("entries"), py::arg("offsets"),
           py::arg("digest"), py::arg("bits_box"), py::arg("shadow_box"), py::arg("block_elements"),
           py::arg("arena"), py::arg("arena_words"), py::arg("newest"), py::arg("stream"),
           py::arg("threshold") = 0, py::arg("ages") = 0, py::arg("age_limit") = 255,
           py::arg("first_index") = 0, py::arg("seed") = 0)
      .def("delta_apply", &device_delta_apply, py::kw_only(), py::arg("entries"),
           py::arg("offsets"), py::arg("payload"), py::arg("payload_words"), py::arg("weights"),
           py::arg("width"), py::arg("count"), py::arg("digest"), py::arg("weights_box"),
           py::arg("block_elements"), py::arg("bad_block"), py::arg("stream"),
           py::arg("undo") = false)
      .def("topk_unpack", &device_topk_unpack, py::kw_only(), py::arg("entries"),
           py::arg("offsets"), py::arg("first_outputs"), py::arg("payload"),
           py::arg("payload_words"), py::arg("base"), py::arg("width"), py::arg("count"),
           py::arg("block_elements"), py::arg("positions"), py::arg("values"),
           py::arg("output_count"), py::arg("bad_block"), py::arg("stream"),
           py::arg("base_box") = py::none())
      .def("topk_histogram", &device_topk_histogram, py::kw_only(), py::arg("bits"),
           py::arg("shadow"), py::arg("count"), py::arg("histogram"), py::arg("stream"),
           py::arg("bits_box") = py::none(), py::arg("shadow_box") = py::none(),
           py::arg("ages") = 0, py::arg("age_limit") = 255)
      .def("topk_threshold", &device_topk_threshold, py::kw_only(), py::arg("histogram"),
           py::arg("budget"), py::arg("threshold"), py::arg("stream"))
      .def("digest", &device_digest, py::kw_only(), py::arg("bits"), py::arg("width"),
           py::arg("count"), py::arg("sums"), py::arg("stream"), py::arg("bits_box") = py::none(),
           py::arg("first_index") = 0, py::arg("seed") = 0);
}

}  // namespace rose::bind
