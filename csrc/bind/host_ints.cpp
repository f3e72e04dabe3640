#include "bind/host_ints.h"

#include <array>
#include <string>
#include <string_view>

#include "bind/status.h"

namespace rose::bind {

namespace py = pybind11;

// The layout of DLPack 0.x, which is frozen: the part of `DLManagedTensor` that every version has.
struct DlpackTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t dimensions;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // null: contiguous
  std::uint64_t byte_offset;
  void* context;
  void (*release)(DlpackTensor*);
};

namespace {

constexpr std::int32_t kDlpackCpu = 1;
constexpr std::int32_t kDlpackCudaHost = 3;
constexpr std::uint8_t kDlpackInt = 0;

// The formats of the struct module under which 32 signed bits in the machine's order travel.
bool is_int32(const char* format, py::ssize_t itemsize) {
  if (itemsize != sizeof(std::int32_t) || format == nullptr) return false;
  const std::string_view name{format};
  return name == "i" || name == "l" || name == "@i" || name == "=i" || name == "<i";
}

}  // namespace

HostInts::HostInts(const py::handle& source, const char* name, std::size_t dimensions,
                   bool is_written)
    : name_{name}, dimensions_{dimensions} {
  if (PyObject_CheckBuffer(source.ptr()) != 0) {
    take_buffer(source, is_written);
  } else if (py::hasattr(source, "__dlpack__")) {
    take_tensor(source);
  } else {
    refuse("is no array");
  }
}

void HostInts::ReleaseTensor::operator()(DlpackTensor* tensor) const {
  if (tensor->release != nullptr) tensor->release(tensor);
}

void HostInts::refuse(const char* why) const {
  raise(Status::invalid_argument(
      std::string{name_} + " " + why + ": it must be int32, " + std::to_string(dimensions_) +
      "-dimensional, in host memory and contiguous in its last dimension"));
}

void HostInts::take_buffer(const py::handle& source, bool is_written) {
  Py_buffer& view = buffer_.view;
  const int wanted = PyBUF_FORMAT | PyBUF_STRIDES | (is_written ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(source.ptr(), &view, wanted) != 0) {
    PyErr_Clear();
    refuse("cannot be written");
  }
  if (!is_int32(view.format, view.itemsize)) refuse("has another type of number");
  if (static_cast<std::size_t>(view.ndim) != dimensions_) refuse("has another shape");
  std::array<std::int64_t, 2> sizes{};
  std::array<std::int64_t, 2> strides{};
  for (std::size_t axis = 0; axis < dimensions_; ++axis) {
    if (view.strides[axis] % view.itemsize != 0) refuse("is not aligned");
    sizes[axis] = view.shape[axis];
    strides[axis] = view.strides[axis] / view.itemsize;
  }
  data_ = static_cast<std::int32_t*>(view.buf);
  shape(sizes.data(), strides.data(), dimensions_);
}

void HostInts::take_tensor(const py::handle& source) {
  const auto device = py::tuple(source.attr("__dlpack_device__")());
  const auto kind = device[0].cast<std::int32_t>();
  if (kind != kDlpackCpu && kind != kDlpackCudaHost) refuse("is on a device");
  const py::object capsule = source.attr("__dlpack__")();
  auto* const tensor = static_cast<DlpackTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  // Until it is renamed, the capsule releases the tensor, also when something is refused here.
  if (tensor->type_code != kDlpackInt || tensor->type_bits != 32 || tensor->type_lanes != 1) {
    refuse("has another type of number");
  }
  if (static_cast<std::size_t>(tensor->dimensions) != dimensions_) refuse("has another shape");
  const std::int64_t width = tensor->shape[dimensions_ - 1];
  const std::array<std::int64_t, 2> dense =
      dimensions_ == 1 ? std::array<std::int64_t, 2>{1, 1} : std::array<std::int64_t, 2>{width, 1};
  data_ =
      reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(tensor->data) + tensor->byte_offset);
  shape(tensor->shape, tensor->strides == nullptr ? dense.data() : tensor->strides, dimensions_);
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  tensor_.reset(tensor);
}

void HostInts::shape(const std::int64_t* sizes, const std::int64_t* strides,
                     std::size_t dimensions) {
  const std::size_t last = dimensions - 1;
  if (sizes[last] > 1 && strides[last] != 1) refuse("has gaps");
  width_ = static_cast<std::size_t>(sizes[last]);
  stride_ = width_;
  if (dimensions == 1) return;
  if (sizes[0] > 1 && strides[0] < sizes[last]) refuse("has rows that overlap");
  rows_ = static_cast<std::size_t>(sizes[0]);
  stride_ = static_cast<std::size_t>(strides[0]);
}

}  // namespace rose::bind
