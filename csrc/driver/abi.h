// The part of the CUDA driver's binary interface that rose uses, so that building and testing need
// no toolkit. Where a toolkit is installed, `tests/driver/abi_check.cpp` compares each entry with
// cudaTypedefs.h. Handles have the vendor's names; enums are ints with constants.
#pragma once

#include <cstddef>
#include <cstdint>

typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUlib_st* CUlibrary;
typedef struct CUkern_st* CUkernel;
typedef struct CUfunc_st* CUfunction;

namespace rose::driver {

// CUresult. Only the values that rose distinguishes have names.
using Answer = int;
constexpr Answer kSuccess = 0;
constexpr Answer kInvalidValue = 1;
constexpr Answer kOutOfMemory = 2;
constexpr Answer kNotInitialised = 3;
constexpr Answer kNoDevice = 100;
constexpr Answer kInvalidDevice = 101;
constexpr Answer kInvalidContext = 201;
constexpr Answer kInvalidHandle = 400;
constexpr Answer kNotFound = 500;
constexpr Answer kNotReady = 600;
constexpr Answer kLaunchTimeout = 702;
constexpr Answer kNotPermitted = 800;
constexpr Answer kNotSupported = 801;

using DeviceOrdinal = int;            // CUdevice
using DevicePointer = std::uint64_t;  // CUdeviceptr_v2
using MemoryHandle = std::uint64_t;   // CUmemGenericAllocationHandle_v1
static_assert(sizeof(void*) == 8);

// CUdevice_attribute.
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;
constexpr int kAttributeWaitValueNor = 123;
constexpr int kAttributeStreamMemOps64 = 122;
constexpr int kAttributeSharedBytesMax = 97;
constexpr int kAttributeMps = 133;
constexpr int kAttributeVirtualMemory = 102;
constexpr int kAttributePosixFdHandles = 103;

struct DeviceUuid {  // CUuuid
  char bytes[16];
};

// Memory.
constexpr int kAllocationPinned = 1;        // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kHandlePosixFd = 1;           // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kLocationDevice = 1;          // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kAccessReadWrite = 3;         // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kGranularityRecommended = 1;  // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
constexpr unsigned kRegisterPortable = 1;   // CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kRegisterDeviceMap = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP

struct MemoryLocation {  // CUmemLocation_v1
  int type;
  int id;
};

struct AllocationProperties {  // CUmemAllocationProp_v1
  int type;
  int handle_types;
  MemoryLocation location;
  void* win32_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescription {  // CUmemAccessDesc_v1
  MemoryLocation location;
  int flags;
};

// Streams and their memory operations.
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDefault = 0;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kWaitValue32 = 1;   // CU_STREAM_MEM_OP_WAIT_VALUE_32
constexpr int kWriteValue32 = 2;  // CU_STREAM_MEM_OP_WRITE_VALUE_32
constexpr unsigned kWaitGeq = 0;  // (int32_t)(*address - value) >= 0
constexpr unsigned kWaitAnd = 2;  // (*address & value) != 0

struct MemoryOperation {  // CUstreamBatchMemOpParams_v1: waits and writes share this layout
  int operation;
  DevicePointer address;
  union {
    std::uint32_t value;
    std::uint64_t value64;
  };
  unsigned flags;
  DevicePointer alias;
  std::uint64_t pad;
};
static_assert(sizeof(MemoryOperation) == 6 * sizeof(std::uint64_t));

struct BatchMemOpNodeParams {  // CUDA_BATCH_MEM_OP_NODE_PARAMS_v1
  CUcontext context;
  unsigned count;
  MemoryOperation* operations;
  unsigned flags;
};

// Kernels.
constexpr int kModulesEager = 1;         // CU_MODULE_EAGER_LOADING
constexpr int kFunctionSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// Graphs.
// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
constexpr unsigned long long kGraphFreesAtLaunch = 1;
constexpr int kCaptureGlobal = 0;
constexpr int kCaptureThreadLocal = 1;
constexpr int kCaptureRelaxed = 2;
constexpr int kCaptureStatusNone = 0;
constexpr int kCaptureStatusActive = 1;
constexpr int kCaptureStatusInvalidated = 2;
constexpr unsigned kSetCaptureDependencies = 1;  // CU_STREAM_SET_CAPTURE_DEPENDENCIES

struct GraphEdge {  // CUgraphEdgeData
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  CUfunction function;
  unsigned blocks_x;
  unsigned blocks_y;
  unsigned blocks_z;
  unsigned threads_x;
  unsigned threads_y;
  unsigned threads_z;
  unsigned shared_bytes;
  void** arguments;
  void** extra;
  CUkernel kernel;
  CUcontext context;
};

// Conditional nodes. Their bodies may contain kernels, copies, fills and child graphs, but no
// stream memory operations.
using ConditionHandle = std::uint64_t;         // CUgraphConditionalHandle
constexpr int kNodeConditional = 13;           // CU_GRAPH_NODE_TYPE_CONDITIONAL
constexpr int kConditionIf = 0;                // CU_GRAPH_COND_TYPE_IF
constexpr unsigned kConditionSetAtLaunch = 1;  // CU_GRAPH_COND_ASSIGN_DEFAULT

struct ConditionalNodeParams {  // CUDA_CONDITIONAL_NODE_PARAMS
  ConditionHandle handle;
  int kind;
  unsigned size;
  CUgraph* bodies;  // out: the driver's own array
  CUcontext context;
};

struct GraphNodeParams {  // CUgraphNodeParams
  int type;
  int reserved[3];
  union {
    ConditionalNodeParams conditional;
    long long padding[29];
  };
  long long more;
};

}  // namespace rose::driver
