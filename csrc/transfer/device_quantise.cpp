#include "transfer/device_quantise.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <utility>

#include "base/ceil_div.h"

namespace rose::transfer {

using driver::KernelLibrary;
using kernels::QuantiseParams;
using QuantiserPtr = std::shared_ptr<const DeviceQuantiser>;

namespace {

// CTAs per multiprocessor in a grid-stride launch: as many as fill its threads.
constexpr std::uint64_t kQuantiseCtas = 8;
// Limit of the product of two sizes: offsets of 16-bit elements, in bytes, then stay below 2^64.
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 62;

// min(a * b, kSizeMax).
std::uint64_t bounded_product(std::uint64_t a, std::uint64_t b) noexcept {
  return a != 0 && b > kSizeMax / a ? kSizeMax : a * b;
}

template <typename T>
Status check_address(const char* name, const T* address) noexcept {
  const auto place = std::bit_cast<std::uint64_t>(address);
  if (place == 0) {
    return Status::invalid_argument(std::string{name} + " must not be null: pass device memory");
  }
  if (place % alignof(T) == 0) return {};
  char text[19];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(place));
  return Status::invalid_argument(std::string{name} + " is at " + text +
                                  ", which is not a multiple of " + std::to_string(alignof(T)));
}

Status check_matrix_sizes(const QuantiseParams& params) noexcept {
  const std::string shape = std::to_string(params.rows) + " x " + std::to_string(params.cols);
  if (params.block_rows == 0 || params.block_cols == 0) {
    return Status::invalid_argument("a scale block of " + std::to_string(params.block_rows) +
                                    " x " + std::to_string(params.block_cols) +
                                    " weights: it must be at least 1 x 1");
  }
  if (params.rows > 1 && params.row_stride < params.cols) {
    return Status::invalid_argument("rows of " + std::to_string(params.cols) + " weights are " +
                                    std::to_string(params.row_stride) +
                                    " apart: they must not overlap");
  }
  const std::uint64_t span = std::max(params.row_stride, params.cols);
  if (bounded_product(params.rows, span) >= kSizeMax) {
    return Status::invalid_argument(shape + " weights with rows " +
                                    std::to_string(params.row_stride) +
                                    " apart: a matrix must span less than 2^62 weights");
  }
  return {};
}

}  // namespace

Result<QuantiserPtr> DeviceQuantiser::create(driver::DevicePtr device) noexcept {
  auto library = KernelLibrary::create(std::move(device), "quantise");
  ROSE_TRY(library.status());
  return create(library.take());
}

Result<QuantiserPtr> DeviceQuantiser::create(
    std::shared_ptr<const KernelLibrary> library) noexcept {
  const Result<CUkernel> by_cta = library->kernel("quantise_cta_kernel");
  ROSE_TRY(by_cta.status());
  const Result<CUkernel> by_warp = library->kernel("quantise_warp_kernel");
  ROSE_TRY(by_warp.status());
  const std::shared_ptr<DeviceQuantiser> quantiser{new DeviceQuantiser};
  quantiser->by_cta_ = by_cta.value();
  quantiser->by_warp_ = by_warp.value();
  const int multiprocessors = library->device()->facts().multiprocessors;
  quantiser->multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  quantiser->library_ = std::move(library);
  return QuantiserPtr{quantiser};
}

Status DeviceQuantiser::quantise(const QuantiseParams& params, CUstream stream) const noexcept {
  if (params.rows == 0 || params.cols == 0) return {};
  ROSE_TRY(check_address("bits", params.bits));
  ROSE_TRY(check_address("codes", params.codes));
  ROSE_TRY(check_address("scales", params.scales));
  ROSE_TRY(check_matrix_sizes(params));
  const std::uint64_t scales =
      ceil_div(params.rows, params.block_rows) * ceil_div(params.cols, params.block_cols);
  const std::uint64_t weights = bounded_product(std::min(params.rows, params.block_rows),
                                                std::min(params.cols, params.block_cols));
  const bool is_small = weights <= kernels::kWeightsOfWarpMax;
  const std::uint64_t of_cta = is_small ? kernels::kQuantiseThreads / kernels::kWarp : 1;
  const std::uint64_t busy = std::uint64_t{multiprocessors_} * kQuantiseCtas;
  const std::uint64_t blocks = std::min({ceil_div(scales, of_cta), busy, driver::kBlocksMax});
  const driver::Grid grid{.blocks = static_cast<unsigned>(blocks),
                          .threads = kernels::kQuantiseThreads};
  return library_->launch(is_small ? by_warp_ : by_cta_, grid, stream, params);
}

}  // namespace rose::transfer
