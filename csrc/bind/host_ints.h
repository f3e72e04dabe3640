// Arrays of 32-bit integers that Python owns and we read or write in place.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace rose::bind {

struct DlpackTensor;

// One or two dimensions of int32 in host memory: a numpy array or anything else with the buffer
// protocol, or a tensor with DLPack (torch on the CPU). No copy is made; the last dimension must be
// contiguous.
class HostInts {
 public:
  // Raises InvalidArgument with a sentence that begins with `name` when `source` is no such array.
  HostInts(const pybind11::handle& source, const char* name, std::size_t dimensions,
           bool is_written);
  HostInts(const HostInts&) = delete;
  HostInts& operator=(const HostInts&) = delete;

  std::int32_t* data() const { return data_; }
  std::size_t rows() const { return rows_; }  // 1 for a single dimension
  std::size_t width() const { return width_; }
  std::size_t stride() const { return stride_; }  // in numbers, from row to row
  std::span<std::int32_t> span() const { return {data_, width_}; }

 private:
  struct Buffer {
    Py_buffer view{};
    ~Buffer() {
      if (view.obj != nullptr) PyBuffer_Release(&view);
    }
  };
  struct ReleaseTensor {
    void operator()(DlpackTensor* tensor) const;
  };

  void take_buffer(const pybind11::handle& source, bool is_written);
  void take_tensor(const pybind11::handle& source);
  // Sizes and distances in numbers, of `dimensions` each.
  void shape(const std::int64_t* sizes, const std::int64_t* strides, std::size_t dimensions);
  [[noreturn]] void refuse(const char* why) const;

  const char* name_;
  std::size_t dimensions_;
  std::int32_t* data_{nullptr};
  std::size_t rows_{1};
  std::size_t width_{0};
  std::size_t stride_{0};
  // What keeps the numbers alive; one of the two.
  Buffer buffer_;
  std::unique_ptr<DlpackTensor, ReleaseTensor> tensor_;
};

}  // namespace rose::bind
