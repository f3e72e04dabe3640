// The driver's entry points that rose uses: name, version, whether rose requires it, and signature;
// sorted by purpose.
//
// The driver resolves a name at a version to the function with that version's signature, so the
// version is part of the type: tests/driver/test_abi.py compares each pair with cudaTypedefs.h.
#pragma once

#include "driver/abi.h"

// X(name, version, need, arguments): `need` is kRequired or kOptional.
#define ROSE_CUDA_ENTRIES(X)                                                                      \
  /* the driver itself, and devices */                                                            \
  X(cuInit, 2000, kRequired, (unsigned))                                                          \
  X(cuDriverGetVersion, 2020, kRequired, (int*))                                                  \
  X(cuGetErrorName, 6000, kRequired, (Answer, const char**))                                      \
  X(cuGetErrorString, 6000, kRequired, (Answer, const char**))                                    \
  X(cuDeviceGetCount, 2000, kRequired, (int*))                                                    \
  X(cuDeviceGet, 2000, kRequired, (DeviceOrdinal*, int))                                          \
  X(cuDeviceGetName, 2000, kRequired, (char*, int, DeviceOrdinal))                                \
  X(cuDeviceGetUuid, 11040, kRequired, (DeviceUuid*, DeviceOrdinal))                              \
  X(cuDeviceGetAttribute, 2000, kRequired, (int*, int, DeviceOrdinal))                            \
  X(cuDevicePrimaryCtxRetain, 7000, kRequired, (CUcontext*, DeviceOrdinal))                       \
  X(cuDevicePrimaryCtxRelease, 11000, kRequired, (DeviceOrdinal))                                 \
  X(cuCtxPushCurrent, 4000, kRequired, (CUcontext))                                               \
  X(cuCtxPopCurrent, 4000, kRequired, (CUcontext*))                                               \
  X(cuCtxGetStreamPriorityRange, 5050, kRequired, (int*, int*))                                   \
  X(cuMemGetInfo, 3020, kRequired, (std::size_t*, std::size_t*))                                  \
  /* memory: physical pages, address space, mapping */                                            \
  X(cuMemGetAllocationGranularity, 10020, kRequired,                                              \
    (std::size_t*, const AllocationProperties*, int))                                             \
  X(cuMemAddressReserve, 10020, kRequired,                                                        \
    (DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long))                \
  X(cuMemAddressFree, 10020, kRequired, (DevicePointer, std::size_t))                             \
  X(cuMemCreate, 10020, kRequired,                                                                \
    (MemoryHandle*, std::size_t, const AllocationProperties*, unsigned long long))                \
  X(cuMemRelease, 10020, kRequired, (MemoryHandle))                                               \
  X(cuMemMap, 10020, kRequired,                                                                   \
    (DevicePointer, std::size_t, std::size_t, MemoryHandle, unsigned long long))                  \
  X(cuMemUnmap, 10020, kRequired, (DevicePointer, std::size_t))                                   \
  X(cuMemSetAccess, 10020, kRequired,                                                             \
    (DevicePointer, std::size_t, const AccessDescription*, std::size_t))                          \
  X(cuMemExportToShareableHandle, 10020, kRequired,                                               \
    (void*, MemoryHandle, int, unsigned long long))                                               \
  X(cuMemImportFromShareableHandle, 10020, kRequired, (MemoryHandle*, void*, int))                \
  X(cuMemHostRegister, 6050, kRequired, (void*, std::size_t, unsigned))                           \
  X(cuMemHostUnregister, 4000, kRequired, (void*))                                                \
  X(cuMemHostGetDevicePointer, 3020, kRequired, (DevicePointer*, void*, unsigned))                \
  X(cuMemsetD32Async, 3020, kRequired, (DevicePointer, unsigned, std::size_t, CUstream))          \
  /* streams and events */                                                                        \
  X(cuStreamCreateWithPriority, 5050, kRequired, (CUstream*, unsigned, int))                      \
  X(cuStreamDestroy, 4000, kRequired, (CUstream))                                                 \
  X(cuStreamGetPriority, 5050, kRequired, (CUstream, int*))                                       \
  X(cuStreamQuery, 2000, kRequired, (CUstream))                                                   \
  X(cuStreamBatchMemOp, 11070, kOptional, (CUstream, unsigned, MemoryOperation*, unsigned))       \
  X(cuEventCreate, 2000, kRequired, (CUevent*, unsigned))                                         \
  X(cuEventDestroy, 4000, kRequired, (CUevent))                                                   \
  X(cuEventRecord, 2000, kRequired, (CUevent, CUstream))                                          \
  X(cuEventQuery, 2000, kRequired, (CUevent))                                                     \
  X(cuEventElapsedTime, 2000, kRequired, (float*, CUevent, CUevent))                              \
  /* kernels */                                                                                   \
  X(cuModuleGetLoadingMode, 11070, kRequired, (int*))                                             \
  X(cuLibraryLoadData, 12000, kRequired,                                                          \
    (CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))                    \
  X(cuLibraryUnload, 12000, kRequired, (CUlibrary))                                               \
  X(cuLibraryGetKernel, 12000, kRequired, (CUkernel*, CUlibrary, const char*))                    \
  X(cuKernelGetFunction, 12000, kRequired, (CUfunction*, CUkernel))                               \
  X(cuKernelSetAttribute, 12000, kRequired, (int, int, CUkernel, DeviceOrdinal))                  \
  X(cuLaunchKernel, 4000, kRequired,                                                              \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,  \
     void**, void**))                                                                             \
  /* graphs */                                                                                    \
  X(cuThreadExchangeStreamCaptureMode, 10010, kRequired, (int*))                                  \
  X(cuStreamBeginCapture, 10010, kRequired, (CUstream, int))                                      \
  X(cuStreamEndCapture, 10000, kRequired, (CUstream, CUgraph*))                                   \
  X(cuStreamGetCaptureInfo, 12030, kOptional,                                                     \
    (CUstream, int*, std::uint64_t*, CUgraph*, const CUgraphNode**, const GraphEdge**,            \
     std::size_t*))                                                                               \
  X(cuStreamUpdateCaptureDependencies, 12030, kOptional,                                          \
    (CUstream, CUgraphNode*, const GraphEdge*, std::size_t, unsigned))                            \
  X(cuGraphAddBatchMemOpNode, 11070, kOptional,                                                   \
    (CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, const BatchMemOpNodeParams*))        \
  X(cuGraphExecBatchMemOpNodeSetParams, 11070, kOptional,                                         \
    (CUgraphExec, CUgraphNode, const BatchMemOpNodeParams*))                                      \
  X(cuGraphCreate, 10000, kRequired, (CUgraph*, unsigned))                                        \
  X(cuGraphAddChildGraphNode, 10000, kRequired,                                                   \
    (CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUgraph))                            \
  X(cuGraphAddKernelNode, 12000, kRequired,                                                       \
    (CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, const KernelNodeParams*))            \
  X(cuGraphConditionalHandleCreate, 12030, kOptional,                                             \
    (ConditionHandle*, CUgraph, CUcontext, unsigned, unsigned))                                   \
  X(cuGraphAddNode, 12030, kOptional,                                                             \
    (CUgraphNode*, CUgraph, const CUgraphNode*, const GraphEdge*, std::size_t, GraphNodeParams*)) \
  X(cuGraphInstantiateWithFlags, 11040, kRequired, (CUgraphExec*, CUgraph, unsigned long long))   \
  X(cuGraphLaunch, 10000, kRequired, (CUgraphExec, CUstream))                                     \
  X(cuGraphExecDestroy, 10000, kRequired, (CUgraphExec))                                          \
  X(cuGraphDestroy, 10000, kRequired, (CUgraph))

namespace rose::driver {

enum class Need { kRequired, kOptional };

// One function pointer per entry point, with the driver's name; null for a missing optional entry.
struct Entries {
#define ROSE_CUDA_POINTER(name, version, need, arguments) Answer(*name) arguments{nullptr};
  ROSE_CUDA_ENTRIES(ROSE_CUDA_POINTER)
#undef ROSE_CUDA_POINTER
};

}  // namespace rose::driver
