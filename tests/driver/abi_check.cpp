// Holds csrc/driver/abi.h and csrc/driver/entries.h against the headers of a CUDA toolkit. It is
// only ever compiled (tests/driver/test_abi.py), so every check is a static_assert.
//
// Own headers come first: cuda.h has macros that rename entry points.
// clang-format off
#include "driver/entries.h"

#include <cuda.h>
#include <cudaTypedefs.h>
// clang-format on

#include <cstddef>
#include <type_traits>

namespace rose::driver {
namespace {

template <typename T>
concept Complete = requires { sizeof(T); };

template <typename Ours, typename Theirs>
constexpr bool alike();

// What a pointer of ours may point to where the driver's points to `Theirs`. Nothing that the
// driver may write is const with us; a handle is the same incomplete type; void stays void.
template <typename Ours, typename Theirs>
constexpr bool points_alike() {
  using O = std::remove_const_t<Ours>;
  using T = std::remove_const_t<Theirs>;
  if constexpr (std::is_const_v<Ours> && !std::is_const_v<Theirs>) {
    return false;
  } else if constexpr (Complete<O> && Complete<T>) {
    return alike<O, T>();
  } else {
    return std::is_same_v<O, T>;
  }
}

// Whether a value of ours is passed, in size and kind, as the driver expects it.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return points_alike<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else if constexpr (std::is_integral_v<Ours>) {
    return std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_class_v<Ours>) {
    return (std::is_class_v<Theirs> || std::is_union_v<Theirs>) && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct Signatures;

template <typename OurAnswer, typename... Ours, typename TheirAnswer, typename... Theirs>
struct Signatures<OurAnswer (*)(Ours...), TheirAnswer (*)(Theirs...)> {
  static constexpr bool arity = sizeof...(Ours) == sizeof...(Theirs);
  static constexpr bool answer = alike<OurAnswer, TheirAnswer>();
  // Behind a function: a pack of two lengths is an error even where `arity` is looked at first.
  static constexpr bool arguments() {
    if constexpr (arity) {
      return (alike<Ours, Theirs>() && ...);
    } else {
      return false;
    }
  }
};

#define ROSE_ENTRY_AGREES(name, version, need, arguments_)                              \
  static_assert(Signatures<Answer(*) arguments_, PFN_##name##_v##version>::arity,       \
                #name ": the number of arguments differs");                             \
  static_assert(Signatures<Answer(*) arguments_, PFN_##name##_v##version>::arguments(), \
                #name ": an argument differs");                                         \
  static_assert(Signatures<Answer(*) arguments_, PFN_##name##_v##version>::answer,      \
                #name ": the return type differs");
ROSE_CUDA_ENTRIES(ROSE_ENTRY_AGREES)

// One row for each structure, field and constant of abi.h; test_abi.py sees that none is left out.
#define STRUCTURE(Ours, Theirs)                                              \
  static_assert(sizeof(Ours) == sizeof(Theirs), #Ours ": the size differs"); \
  static_assert(alignof(Ours) == alignof(Theirs), #Ours ": the alignment differs");

#define FIELD(Ours, ours, Theirs, theirs)                         \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs), \
                #Ours "::" #ours ": the place differs");          \
  static_assert(sizeof(Ours::ours) == sizeof(Theirs::theirs),     \
                #Ours "::" #ours ": the size differs");

#define INNER_FIELD(Ours, inner, ours, Theirs, theirs)                  \
  static_assert(offsetof(Ours, inner.ours) == offsetof(Theirs, theirs), \
                #Ours "::" #inner "." #ours ": the place differs");     \
  static_assert(sizeof(Ours{}.inner.ours) == sizeof(Theirs{}.theirs),   \
                #Ours "::" #inner "." #ours ": the size differs");

// Through int: an enumerator and a constant of ours are of different types on purpose.
#define CONSTANT(ours, theirs)                                                  \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), \
                #ours " is not " #theirs);

static_assert(alike<Answer, CUresult>());
static_assert(alike<DeviceOrdinal, CUdevice>());
static_assert(alike<DevicePointer, CUdeviceptr>());
static_assert(alike<MemoryHandle, CUmemGenericAllocationHandle>());

STRUCTURE(DeviceUuid, CUuuid)
FIELD(DeviceUuid, bytes, CUuuid, bytes)

CONSTANT(kSuccess, CUDA_SUCCESS)
CONSTANT(kInvalidValue, CUDA_ERROR_INVALID_VALUE)
CONSTANT(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
CONSTANT(kNotInitialised, CUDA_ERROR_NOT_INITIALIZED)
CONSTANT(kNoDevice, CUDA_ERROR_NO_DEVICE)
CONSTANT(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE)
CONSTANT(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT)
CONSTANT(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE)
CONSTANT(kNotFound, CUDA_ERROR_NOT_FOUND)
CONSTANT(kNotReady, CUDA_ERROR_NOT_READY)
CONSTANT(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT)
CONSTANT(kNotPermitted, CUDA_ERROR_NOT_PERMITTED)
CONSTANT(kNotSupported, CUDA_ERROR_NOT_SUPPORTED)

CONSTANT(kAttributeMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
CONSTANT(kAttributeComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CONSTANT(kAttributeComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CONSTANT(kAttributeWaitValueNor, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR)
CONSTANT(kAttributeStreamMemOps64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
CONSTANT(kAttributeSharedBytesMax, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
CONSTANT(kAttributeMps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
CONSTANT(kAttributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
CONSTANT(kAttributePosixFdHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)

CONSTANT(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED)
CONSTANT(kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
CONSTANT(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE)
CONSTANT(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
CONSTANT(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
CONSTANT(kRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE)
CONSTANT(kRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP)

STRUCTURE(MemoryLocation, CUmemLocation_v1)
FIELD(MemoryLocation, type, CUmemLocation_v1, type)
FIELD(MemoryLocation, id, CUmemLocation_v1, id)

STRUCTURE(AllocationProperties, CUmemAllocationProp_v1)
FIELD(AllocationProperties, type, CUmemAllocationProp_v1, type)
FIELD(AllocationProperties, handle_types, CUmemAllocationProp_v1, requestedHandleTypes)
FIELD(AllocationProperties, location, CUmemAllocationProp_v1, location)
FIELD(AllocationProperties, win32_metadata, CUmemAllocationProp_v1, win32HandleMetaData)
FIELD(AllocationProperties, flags, CUmemAllocationProp_v1, allocFlags)
INNER_FIELD(AllocationProperties, flags, compression_type, CUmemAllocationProp_v1,
            allocFlags.compressionType)
INNER_FIELD(AllocationProperties, flags, gpu_direct_rdma_capable, CUmemAllocationProp_v1,
            allocFlags.gpuDirectRDMACapable)
INNER_FIELD(AllocationProperties, flags, usage, CUmemAllocationProp_v1, allocFlags.usage)
INNER_FIELD(AllocationProperties, flags, reserved, CUmemAllocationProp_v1, allocFlags.reserved)

STRUCTURE(AccessDescription, CUmemAccessDesc_v1)
FIELD(AccessDescription, location, CUmemAccessDesc_v1, location)
FIELD(AccessDescription, flags, CUmemAccessDesc_v1, flags)

CONSTANT(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
CONSTANT(kEventDefault, CU_EVENT_DEFAULT)
CONSTANT(kEventDisableTiming, CU_EVENT_DISABLE_TIMING)
CONSTANT(kWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32)
CONSTANT(kWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32)
CONSTANT(kWaitGeq, CU_STREAM_WAIT_VALUE_GEQ)
CONSTANT(kWaitAnd, CU_STREAM_WAIT_VALUE_AND)

// A wait and a write have one layout, which is what lets one structure of ours stand for both.
using Wait = CUstreamBatchMemOpParams_v1::CUstreamMemOpWaitValueParams_st;
using Write = CUstreamBatchMemOpParams_v1::CUstreamMemOpWriteValueParams_st;
STRUCTURE(MemoryOperation, CUstreamBatchMemOpParams_v1)
FIELD(MemoryOperation, operation, Wait, operation)
FIELD(MemoryOperation, address, Wait, address)
FIELD(MemoryOperation, value, Wait, value)
FIELD(MemoryOperation, value64, Wait, value64)
FIELD(MemoryOperation, flags, Wait, flags)
FIELD(MemoryOperation, alias, Wait, alias)
FIELD(MemoryOperation, operation, Write, operation)
FIELD(MemoryOperation, address, Write, address)
FIELD(MemoryOperation, value, Write, value)
FIELD(MemoryOperation, value64, Write, value64)
FIELD(MemoryOperation, flags, Write, flags)
FIELD(MemoryOperation, alias, Write, alias)
static_assert(offsetof(MemoryOperation, pad) == sizeof(Wait));

STRUCTURE(BatchMemOpNodeParams, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1)
FIELD(BatchMemOpNodeParams, context, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1, ctx)
FIELD(BatchMemOpNodeParams, count, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1, count)
FIELD(BatchMemOpNodeParams, operations, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1, paramArray)
FIELD(BatchMemOpNodeParams, flags, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1, flags)

CONSTANT(kModulesEager, CU_MODULE_EAGER_LOADING)
CONSTANT(kFunctionSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
CONSTANT(kGraphFreesAtLaunch, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
CONSTANT(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL)
CONSTANT(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
CONSTANT(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED)
CONSTANT(kCaptureStatusNone, CU_STREAM_CAPTURE_STATUS_NONE)
CONSTANT(kCaptureStatusActive, CU_STREAM_CAPTURE_STATUS_ACTIVE)
CONSTANT(kCaptureStatusInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED)
CONSTANT(kSetCaptureDependencies, CU_STREAM_SET_CAPTURE_DEPENDENCIES)

STRUCTURE(GraphEdge, CUgraphEdgeData)
FIELD(GraphEdge, from_port, CUgraphEdgeData, from_port)
FIELD(GraphEdge, to_port, CUgraphEdgeData, to_port)
FIELD(GraphEdge, type, CUgraphEdgeData, type)
FIELD(GraphEdge, reserved, CUgraphEdgeData, reserved)

STRUCTURE(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2)
FIELD(KernelNodeParams, function, CUDA_KERNEL_NODE_PARAMS_v2, func)
FIELD(KernelNodeParams, blocks_x, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX)
FIELD(KernelNodeParams, blocks_y, CUDA_KERNEL_NODE_PARAMS_v2, gridDimY)
FIELD(KernelNodeParams, blocks_z, CUDA_KERNEL_NODE_PARAMS_v2, gridDimZ)
FIELD(KernelNodeParams, threads_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX)
FIELD(KernelNodeParams, threads_y, CUDA_KERNEL_NODE_PARAMS_v2, blockDimY)
FIELD(KernelNodeParams, threads_z, CUDA_KERNEL_NODE_PARAMS_v2, blockDimZ)
FIELD(KernelNodeParams, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes)
FIELD(KernelNodeParams, arguments, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams)
FIELD(KernelNodeParams, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra)
FIELD(KernelNodeParams, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern)
FIELD(KernelNodeParams, context, CUDA_KERNEL_NODE_PARAMS_v2, ctx)

static_assert(alike<ConditionHandle, CUgraphConditionalHandle>());
CONSTANT(kNodeConditional, CU_GRAPH_NODE_TYPE_CONDITIONAL)
CONSTANT(kConditionIf, CU_GRAPH_COND_TYPE_IF)
CONSTANT(kConditionSetAtLaunch, CU_GRAPH_COND_ASSIGN_DEFAULT)
STRUCTURE(ConditionalNodeParams, CUDA_CONDITIONAL_NODE_PARAMS)
FIELD(ConditionalNodeParams, handle, CUDA_CONDITIONAL_NODE_PARAMS, handle)
FIELD(ConditionalNodeParams, kind, CUDA_CONDITIONAL_NODE_PARAMS, type)
FIELD(ConditionalNodeParams, size, CUDA_CONDITIONAL_NODE_PARAMS, size)
FIELD(ConditionalNodeParams, bodies, CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out)
FIELD(ConditionalNodeParams, context, CUDA_CONDITIONAL_NODE_PARAMS, ctx)
STRUCTURE(GraphNodeParams, CUgraphNodeParams)
FIELD(GraphNodeParams, type, CUgraphNodeParams, type)
FIELD(GraphNodeParams, reserved, CUgraphNodeParams, reserved0)
FIELD(GraphNodeParams, conditional, CUgraphNodeParams, conditional)
FIELD(GraphNodeParams, padding, CUgraphNodeParams, reserved1)
FIELD(GraphNodeParams, more, CUgraphNodeParams, reserved2)

}  // namespace
}  // namespace rose::driver
