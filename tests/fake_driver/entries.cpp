// Every entry point of the table, as the driver documents it, and the one symbol it is found by.
//
// The signatures come from csrc/driver/entries.h, and an entry without an implementation here does
// not compile. What rose never does is refused (InvalidValue) rather than imitated.
#include "driver/entries.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>

#include "world.h"

namespace fake {
namespace {

constexpr Answer kNotInitialized = 3;
constexpr Answer kAlreadyRegistered = 712;
constexpr Answer kNotRegistered = 713;
constexpr Answer kCaptureUnsupported = 900;
constexpr Answer kCaptureInvalidated = 901;
constexpr Answer kCaptureUnmatched = 903;
constexpr Answer kCapturedEvent = 907;
constexpr Answer kCaptureWrongThread = 908;

struct Word {
  Answer answer;
  const char* name;
  const char* text;
};
constexpr Word kWords[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "memory is already registered"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "memory is not registered"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture was not begun in this stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture was begun by another thread"},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration"},
};

World& world() { return World::get(); }

template <typename Map, typename Key>
auto* find(Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

Stream* find_stream(CUstream handle) { return world().find_stream(handle); }

template <typename Handle>
Handle make_handle() {
  return reinterpret_cast<Handle>(world().next());
}

template <typename Handle>
Answer unknown(const char* what, Handle handle) {
  return world().fault(std::string{"unknown "} + what + " " + hex(handle), kInvalidHandle);
}

bool is_device(DeviceOrdinal device) { return device >= 0 && device < world().devices; }

void note(const MemoryOperation* operations, unsigned count) {
  for (unsigned i = 0; i < count; ++i) world().log.push_back("  " + describe(operations[i]));
}

// ---- the entry points

namespace does {

#define FAKE_DECLARE(name, version, need, arguments) Answer name arguments;
ROSE_CUDA_ENTRIES(FAKE_DECLARE)
#undef FAKE_DECLARE

Answer cuInit(unsigned) {
  if (world().devices == 0) return kNoDevice;
  world().is_initialised = true;
  return kSuccess;
}

Answer cuDriverGetVersion(int* version) {
  *version = world().version;
  return kSuccess;
}

Answer cuGetErrorName(Answer answer, const char** name) {
  const auto found = std::ranges::find(kWords, answer, &Word::answer);
  *name = found == std::end(kWords) ? nullptr : found->name;
  return *name == nullptr ? kInvalidValue : kSuccess;
}

Answer cuGetErrorString(Answer answer, const char** text) {
  const auto found = std::ranges::find(kWords, answer, &Word::answer);
  *text = found == std::end(kWords) ? nullptr : found->text;
  return *text == nullptr ? kInvalidValue : kSuccess;
}

Answer cuDeviceGetCount(int* count) {
  *count = world().devices;
  return kSuccess;
}

Answer cuDeviceGet(DeviceOrdinal* device, int ordinal) {
  if (!is_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Answer cuDeviceGetName(char* name, int size, DeviceOrdinal device) {
  if (!is_device(device)) return kInvalidDevice;
  const std::string text = "Fake GPU " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<std::size_t>(size) - 1);
  return kSuccess;
}

Answer cuDeviceGetUuid(DeviceUuid* uuid, DeviceOrdinal device) {
  if (!is_device(device)) return kInvalidDevice;
  const auto at = static_cast<std::size_t>(device);
  const std::vector<int>& set = world().uuids;
  for (char& byte : uuid->bytes) byte = 'G';
  uuid->bytes[15] = static_cast<char>(at < set.size() ? set[at] : device);
  return kSuccess;
}

Answer cuDeviceGetAttribute(int* value, int attribute, DeviceOrdinal device) {
  if (!is_device(device)) return kInvalidDevice;
  if (const int* set = find(world().attributes, attribute)) {
    *value = *set;
    return kSuccess;
  }
  switch (attribute) {
    case kAttributeComputeMajor:
      *value = 9;
      break;
    case kAttributeComputeMinor:
      *value = 0;
      break;
    case kAttributeMultiprocessors:
      *value = kMultiprocessors;
      break;
    case kAttributeSharedBytesMax:
      *value = kSharedBytesMax;
      break;
    case kAttributeMps:
      *value = 0;
      break;
    default:
      *value = 1;  // it can
  }
  return kSuccess;
}

Answer cuDevicePrimaryCtxRetain(CUcontext* context, DeviceOrdinal device) {
  if (!is_device(device)) return kInvalidDevice;
  ++world().retains[device];
  *context = world().context_of(device);
  return kSuccess;
}

Answer cuDevicePrimaryCtxRelease(DeviceOrdinal device) {
  int* retains = find(world().retains, device);
  if (retains == nullptr || *retains == 0) {
    return world().fault("a context is released that nobody retains", kInvalidContext);
  }
  if (--*retains > 0) return kSuccess;
  const CUcontext context = world().context_of(device);
  for (const auto& [handle, stream] : world().streams) {
    if (handle != nullptr && stream.context == context && !stream.is_destroyed) {
      world().fault("a context ends before stream " + hex(handle), kSuccess);
    }
  }
  for (const auto& [handle, event] : world().events) {
    if (event.context == context) {
      world().fault("a context ends before event " + hex(handle), kSuccess);
    }
  }
  return kSuccess;
}

Answer cuCtxPushCurrent(CUcontext context) {
  if (!world().is_context(context)) {
    return world().fault("context " + hex(context) + " is pushed and nobody retains it",
                         kInvalidContext);
  }
  contexts().stack.push_back(context);
  contexts().is_push_refused = false;
  return kSuccess;
}

Answer cuCtxPopCurrent(CUcontext* context) {
  if (contexts().stack.empty()) {
    return world().fault("no context to pop", kInvalidContext);
  }
  *context = contexts().stack.back();
  contexts().stack.pop_back();
  return kSuccess;
}

Answer cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = kHighestPriority;
  return kSuccess;
}

Answer cuMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = world().memory_bytes;
  *free = *total - std::min(*total, world().used_bytes);
  return kSuccess;
}

// ---- memory

bool is_usual(const AllocationProperties* properties) {
  return properties != nullptr && properties->type == kAllocationPinned &&
         properties->location.type == kLocationDevice && is_device(properties->location.id);
}

bool is_whole(std::size_t size_bytes) { return size_bytes > 0 && size_bytes % kGranularity == 0; }

Answer cuMemGetAllocationGranularity(std::size_t* granularity,
                                     const AllocationProperties* properties, int) {
  if (!is_usual(properties)) return kInvalidValue;
  *granularity = kGranularity;
  return kSuccess;
}

Answer cuMemAddressReserve(DevicePointer* at, std::size_t size, std::size_t alignment,
                           DevicePointer wanted, unsigned long long flags) {
  if (!is_whole(size) || alignment > kGranularity || wanted != 0 || flags != 0) {
    return kInvalidValue;
  }
  void* room = ::mmap(nullptr, size + kGranularity, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return kOutOfMemory;
  const auto start = std::bit_cast<DevicePointer>(room);
  *at = (start + kGranularity - 1) / kGranularity * kGranularity;
  if (*at > start) ::munmap(room, *at - start);
  const DevicePointer end = start + size + kGranularity;
  if (end > *at + size) ::munmap(std::bit_cast<void*>(*at + size), end - *at - size);
  world().reservations[*at] = size;
  return kSuccess;
}

// The mappings that lie in [at, at + size), if they are whole.
bool mappings_in(DevicePointer at, std::size_t size, std::vector<DevicePointer>& out) {
  for (const auto& [base, mapped] : world().mappings) {
    if (base + mapped.size_bytes <= at || base >= at + size) continue;
    if (base < at || base + mapped.size_bytes > at + size) return false;
    out.push_back(base);
  }
  return true;
}

Answer cuMemAddressFree(DevicePointer at, std::size_t size) {
  const std::size_t* reserved = find(world().reservations, at);
  if (reserved == nullptr || *reserved != size) return unknown("reservation", at);
  std::vector<DevicePointer> inside;
  if (!mappings_in(at, size, inside) || !inside.empty()) {
    return world().fault("addresses are freed that memory is mapped at", kInvalidValue);
  }
  ::munmap(std::bit_cast<void*>(at), size);
  world().reservations.erase(at);
  return kSuccess;
}

// Fresh device memory holds what it held before, so nothing may count on zeros.
void soil(int fd, std::size_t size) {
  void* bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (bytes == MAP_FAILED) return;
  std::memset(bytes, 0xA5, size);
  ::munmap(bytes, size);
}

Answer cuMemCreate(MemoryHandle* handle, std::size_t size, const AllocationProperties* properties,
                   unsigned long long flags) {
  if (!is_usual(properties) || !is_whole(size) || flags != 0) return kInvalidValue;
  world().log.push_back("  on device " + std::to_string(properties->location.id));
  if (size > world().memory_bytes - world().used_bytes) return kOutOfMemory;
  auto memory = std::make_shared<Allocation>();
  memory->fd = ::memfd_create("fakecuda", MFD_CLOEXEC);
  if (memory->fd < 0 || ::ftruncate(memory->fd, static_cast<off_t>(size)) != 0) {
    return kOutOfMemory;
  }
  soil(memory->fd, size);
  memory->size_bytes = size;
  memory->can_export = (properties->handle_types & kHandlePosixFd) != 0;
  memory->used_bytes = &world().used_bytes;
  world().used_bytes += size;
  *handle = world().next();
  world().allocations[*handle] = std::move(memory);
  return kSuccess;
}

// What is mapped stays until it is unmapped.
Answer cuMemRelease(MemoryHandle handle) {
  if (world().allocations.erase(handle) == 0) return unknown("memory", handle);
  return kSuccess;
}

bool is_reserved(DevicePointer at, std::size_t size) {
  auto next = world().reservations.upper_bound(at);
  if (next == world().reservations.begin()) return false;
  --next;
  return at + size <= next->first + next->second;
}

Answer cuMemMap(DevicePointer at, std::size_t size, std::size_t offset, MemoryHandle handle,
                unsigned long long flags) {
  const auto* memory = find(world().allocations, handle);
  if (memory == nullptr) return unknown("memory", handle);
  std::vector<DevicePointer> inside;
  if (!is_whole(size) || size > (*memory)->size_bytes || offset != 0 || flags != 0 ||
      at % kGranularity != 0 || !is_reserved(at, size) || !mappings_in(at, size, inside) ||
      !inside.empty()) {
    return kInvalidValue;
  }
  void* mapped =
      ::mmap(std::bit_cast<void*>(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, (*memory)->fd, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  world().mappings[at] = {size, *memory, false};
  return kSuccess;
}

Answer cuMemUnmap(DevicePointer at, std::size_t size) {
  std::vector<DevicePointer> inside;
  if (!mappings_in(at, size, inside) || inside.empty()) {
    return world().fault("nothing whole is mapped at " + hex(at), kInvalidValue);
  }
  ::mmap(std::bit_cast<void*>(at), size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  for (const DevicePointer base : inside) world().mappings.erase(base);
  return kSuccess;
}

Answer cuMemSetAccess(DevicePointer at, std::size_t size, const AccessDescription* access,
                      std::size_t count) {
  std::vector<DevicePointer> inside;
  if (count != 1 || access->location.type != kLocationDevice || !is_device(access->location.id) ||
      access->flags != kAccessReadWrite || !mappings_in(at, size, inside) || inside.empty()) {
    return kInvalidValue;
  }
  world().log.push_back("  for device " + std::to_string(access->location.id));
  ::mprotect(std::bit_cast<void*>(at), size, PROT_READ | PROT_WRITE);
  for (const DevicePointer base : inside) world().mappings[base].has_access = true;
  return kSuccess;
}

Answer cuMemExportToShareableHandle(void* out, MemoryHandle handle, int type,
                                    unsigned long long flags) {
  const auto* memory = find(world().allocations, handle);
  if (memory == nullptr) return unknown("memory", handle);
  if (type != kHandlePosixFd || flags != 0 || !(*memory)->can_export) return kInvalidValue;
  const int fd = ::dup((*memory)->fd);
  std::memcpy(out, &fd, sizeof fd);
  return fd < 0 ? kOutOfMemory : kSuccess;
}

// Whether the descriptor was exported by a fake driver, of this process or another.
bool is_device_memory(int fd) {
  char target[64]{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(link.c_str(), target, sizeof target - 1) > 0 &&
         std::string_view{target}.starts_with("/memfd:fakecuda");
}

Answer cuMemImportFromShareableHandle(MemoryHandle* handle, void* source, int type) {
  const int fd = static_cast<int>(std::bit_cast<std::intptr_t>(source));
  struct stat about{};
  if (type != kHandlePosixFd || !is_device_memory(fd) || ::fstat(fd, &about) != 0) {
    return kInvalidValue;
  }
  auto memory = std::make_shared<Allocation>();
  memory->fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  memory->size_bytes = static_cast<std::size_t>(about.st_size);
  memory->can_export = true;
  *handle = world().next();
  world().allocations[*handle] = std::move(memory);
  return kSuccess;
}

Answer cuMemHostRegister(void* data, std::size_t size, unsigned flags) {
  if (data == nullptr || size == 0 || (flags & ~(kRegisterPortable | kRegisterDeviceMap)) != 0) {
    return kInvalidValue;
  }
  const auto* start = static_cast<const std::byte*>(data);
  for (const auto& [base, range] : world().registered) {
    if (start < base + range.size_bytes && base < start + size) return kAlreadyRegistered;
  }
  world().registered[start] = {size, (flags & kRegisterDeviceMap) != 0};
  return kSuccess;
}

Answer cuMemHostUnregister(void* data) {
  if (world().registered.erase(static_cast<const std::byte*>(data)) > 0) return kSuccess;
  return world().fault("memory is unregistered that was not registered: " + hex(data),
                       kNotRegistered);
}

Answer cuMemHostGetDevicePointer(DevicePointer* out, void* data, unsigned flags) {
  const auto* start = static_cast<const std::byte*>(data);
  for (const auto& [base, range] : world().registered) {
    if (start < base || start >= base + range.size_bytes) continue;
    if (!range.is_mapped || flags != 0) return kInvalidValue;
    *out = std::bit_cast<DevicePointer>(data);
    return kSuccess;
  }
  return kInvalidValue;
}

Answer cuMemsetD32Async(DevicePointer at, unsigned value, std::size_t count, CUstream stream) {
  if (!world().is_accessible(at, 4 * count)) return kInvalidValue;
  return world().issue(stream, Fill{at, value, count});
}

// ---- streams and events

Answer cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  if (flags > kStreamNonBlocking) return kInvalidValue;
  *handle = make_handle<CUstream>();
  Stream& stream = world().streams[*handle];
  stream.context = contexts().stack.back();
  stream.priority = std::clamp(priority, kHighestPriority, 0);
  return kSuccess;
}

Answer cuStreamDestroy(CUstream handle) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr || handle == nullptr) return unknown("stream", handle);
  if (stream->capture) world().end_capture(*stream, false);
  stream->is_destroyed = true;
  return kSuccess;
}

Answer cuStreamGetPriority(CUstream handle, int* priority) {
  const Stream* stream = find_stream(handle);
  if (stream == nullptr) return unknown("stream", handle);
  *priority = stream->priority;
  return kSuccess;
}

// The mode is that of the calling thread.
Answer cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, contexts().capture_mode);
  return kSuccess;
}

Answer cuStreamQuery(CUstream handle) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return unknown("stream", handle);
  if (stream->capture) {
    stream->capture->status = kCaptureStatusInvalidated;
    return kCaptureUnsupported;
  }
  return stream->queue.empty() ? kSuccess : kNotReady;
}

Answer check_operations(const MemoryOperation* operations, unsigned count, unsigned flags) {
  if (count == 0 || count > 256 || operations == nullptr || flags != 0) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    const MemoryOperation& one = operations[i];
    const bool is_known = one.operation == kWaitValue32 || one.operation == kWriteValue32;
    if (!is_known || one.address % 4 != 0 || !world().is_accessible(one.address, 4)) {
      return kInvalidValue;
    }
  }
  note(operations, count);
  return kSuccess;
}

Answer cuStreamBatchMemOp(CUstream stream, unsigned count, MemoryOperation* operations,
                          unsigned flags) {
  if (const Answer bad = check_operations(operations, count, flags)) return bad;
  return world().issue(stream, Batch{{operations, operations + count}, 0});
}

Answer cuEventCreate(CUevent* event, unsigned flags) {
  if ((flags & ~kEventDisableTiming) != 0) return kInvalidValue;
  *event = make_handle<CUevent>();
  world().events[*event] = {.context = contexts().stack.back(),
                            .has_timing = (flags & kEventDisableTiming) == 0};
  return kSuccess;
}

Answer cuEventDestroy(CUevent event) {
  if (world().events.erase(event) == 0) return unknown("event", event);
  return kSuccess;
}

Answer cuEventRecord(CUevent handle, CUstream stream_handle) {
  Event* event = find(world().events, handle);
  const Stream* stream = find_stream(stream_handle);
  if (event == nullptr) return unknown("event", handle);
  if (stream == nullptr) return unknown("stream", stream_handle);
  if (stream_handle != nullptr && stream->context != event->context) {
    return world().fault("an event is recorded in a stream of another context", kInvalidHandle);
  }
  event->is_captured = stream->capture.has_value();
  if (event->is_captured) return kSuccess;
  return world().issue(stream_handle, Record{handle, ++event->recorded});
}

Answer cuEventQuery(CUevent handle) {
  const Event* event = find(world().events, handle);
  if (event == nullptr) return unknown("event", handle);
  if (event->is_captured) return kCapturedEvent;
  return event->done == event->recorded ? kSuccess : kNotReady;
}

Answer cuEventElapsedTime(float* ms, CUevent start_handle, CUevent end_handle) {
  const Event* start = find(world().events, start_handle);
  const Event* end = find(world().events, end_handle);
  if (start == nullptr || end == nullptr) return unknown("event", start_handle);
  for (const Event* one : {start, end}) {
    if (!one->has_timing || one->recorded == 0) return kInvalidHandle;
  }
  for (const Event* one : {start, end}) {
    if (one->done != one->recorded) return kNotReady;
  }
  *ms = static_cast<float>(static_cast<double>(end->time_ns - start->time_ns) / 1e6);
  return kSuccess;
}

// ---- kernels

Answer cuModuleGetLoadingMode(int* mode) {
  *mode = world().is_eager ? kModulesEager : 2;
  return kSuccess;
}

Answer cuLibraryLoadData(CUlibrary* library, const void* code, int*, void**, unsigned options, int*,
                         void**, unsigned library_options) {
  if (code == nullptr || options != 0 || library_options != 0) return kInvalidValue;
  *library = make_handle<CUlibrary>();
  world().libraries.insert(*library);
  return kSuccess;
}

Answer cuLibraryUnload(CUlibrary library) {
  if (world().libraries.erase(library) == 0) return unknown("library", library);
  std::erase_if(world().kernels, [&](const auto& one) { return one.second.library == library; });
  return kSuccess;
}

// A library has every kernel that it is asked for: what is in it nobody looks at.
Answer cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (!world().libraries.contains(library)) return unknown("library", library);
  *kernel = make_handle<CUkernel>();
  world().kernels[*kernel] = {library, name, false};
  return kSuccess;
}

Answer cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  Kernel* kernel = find(world().kernels, handle);
  if (kernel == nullptr) return unknown("kernel", handle);
  kernel->is_loaded = true;
  *function = reinterpret_cast<CUfunction>(handle);
  return kSuccess;
}

std::vector<std::uint64_t> copy_arguments(const std::string& kernel, void** arguments) {
  std::vector<std::uint64_t> copied;
  const auto* sizes = find(world().argument_sizes, kernel);
  for (std::size_t i = 0; sizes != nullptr && i < sizes->size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(arguments[i]);
    for (std::size_t at = 0; at < (*sizes)[i]; at += sizeof(std::uint64_t)) {
      copied.push_back(0);
      std::memcpy(&copied.back(), bytes + at, std::min(sizeof(std::uint64_t), (*sizes)[i] - at));
    }
  }
  return copied;
}

Answer cuKernelSetAttribute(int attribute, int value, CUkernel handle, DeviceOrdinal device) {
  Kernel* kernel = find(world().kernels, handle);
  if (kernel == nullptr) return unknown("kernel", handle);
  if (!is_device(device)) return kInvalidDevice;
  if (attribute != kFunctionSharedBytes || value < 0 || value > kSharedBytesMax) {
    return kInvalidValue;
  }
  kernel->shared_bytes_max = value;
  return kSuccess;
}

Answer cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                      CUstream stream, void** arguments, void** extra) {
  const auto handle = reinterpret_cast<CUkernel>(function);
  const Kernel* kernel = find(world().kernels, handle);
  if (kernel == nullptr) return unknown("kernel", function);
  const std::uint64_t blocks = std::uint64_t{grid_x} * grid_y * grid_z;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (blocks == 0 || threads == 0 || threads > 1024 || extra != nullptr) return kInvalidValue;
  if (shared > static_cast<unsigned>(kernel->shared_bytes_max)) return kInvalidValue;
  if (!kernel->is_loaded) {
    world().fault("kernel " + kernel->name + " is loaded by its first launch", kSuccess);
  }
  return world().issue(stream, Launch{handle,
                                      {grid_x, grid_y, grid_z},
                                      {block_x, block_y, block_z},
                                      shared,
                                      copy_arguments(kernel->name, arguments)});
}

// ---- graphs

Answer cuStreamBeginCapture(CUstream handle, int mode) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return unknown("stream", handle);
  if (handle == nullptr || stream->capture || mode < 0 || mode > 2) return kCaptureUnsupported;
  const auto graph = make_handle<CUgraph>();
  world().graphs[graph].is_captured = true;
  stream->capture = Capture{.mode = mode, .thread = std::this_thread::get_id(), .graph = graph};
  return kSuccess;
}

Answer cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Stream* stream = find_stream(handle);
  *graph = nullptr;
  if (stream == nullptr) return unknown("stream", handle);
  if (!stream->capture) return kCaptureUnmatched;
  const Capture& capture = *stream->capture;
  if (capture.mode != kCaptureRelaxed && capture.thread != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  const bool is_whole = capture.status == kCaptureStatusActive;
  if (is_whole) *graph = capture.graph;
  world().end_capture(*stream, is_whole);
  return is_whole ? kSuccess : kCaptureInvalidated;
}

Answer cuStreamGetCaptureInfo(CUstream handle, int* status, std::uint64_t* id, CUgraph* graph,
                              const CUgraphNode** last, const GraphEdge** edges,
                              std::size_t* count) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return unknown("stream", handle);
  *status = stream->capture ? stream->capture->status : kCaptureStatusNone;
  if (*status != kCaptureStatusActive) return kSuccess;
  Capture& capture = *stream->capture;
  capture.edges.assign(capture.last.size(), {});
  *id = std::bit_cast<std::uint64_t>(capture.graph);
  *graph = capture.graph;
  *last = capture.last.data();
  *edges = capture.edges.data();
  *count = capture.last.size();
  return kSuccess;
}

Answer cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode* nodes,
                                         const GraphEdge* edges, std::size_t count,
                                         unsigned flags) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return unknown("stream", handle);
  if (!stream->capture || edges != nullptr || flags > kSetCaptureDependencies) {
    return kInvalidValue;
  }
  Capture& capture = *stream->capture;
  if (capture.status != kCaptureStatusActive) return kCaptureInvalidated;
  if (flags == kSetCaptureDependencies) capture.last.clear();
  capture.last.insert(capture.last.end(), nodes, nodes + count);
  return kSuccess;
}

Answer check_node(const BatchMemOpNodeParams* params) {
  if (!world().is_context(params->context)) {
    return world().fault("a node is for a context that nobody retains", kInvalidContext);
  }
  return check_operations(params->operations, params->count, params->flags);
}

// Whether a node may come after these.
Answer check_place(CUgraph handle, const CUgraphNode* after, std::size_t count) {
  const Graph* graph = find(world().graphs, handle);
  if (graph == nullptr) return unknown("graph", handle);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::ranges::find(graph->nodes, after[i], &Node::id) == graph->nodes.end()) {
      return kInvalidValue;
    }
  }
  return kSuccess;
}

Answer cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after,
                                std::size_t count, const BatchMemOpNodeParams* params) {
  if (const Answer bad = check_place(handle, after, count)) return bad;
  if (const Answer bad = check_node(params)) return bad;
  *node = world().add_node(handle, {after, after + count},
                           Batch{{params->operations, params->operations + params->count}, 0});
  return kSuccess;
}

Answer cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                          const BatchMemOpNodeParams* params) {
  auto* known = find(world().executables, executable);
  if (known == nullptr) return unknown("executable graph", executable);
  const auto found = std::ranges::find(known->nodes, node, &Node::id);
  Batch* batch = found == known->nodes.end() ? nullptr : std::get_if<Batch>(&found->work);
  if (batch == nullptr || batch->operations.size() != params->count) return kInvalidValue;
  if (const Answer bad = check_node(params)) return bad;
  batch->operations.assign(params->operations, params->operations + params->count);
  return kSuccess;
}

Answer cuGraphCreate(CUgraph* graph, unsigned flags) {
  if (flags != 0) return kInvalidValue;
  *graph = make_handle<CUgraph>();
  world().graphs[*graph];
  return kSuccess;
}

// A clone: what becomes of the child's graph later does not matter.
Answer cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after,
                                std::size_t count, CUgraph child_handle) {
  if (const Answer bad = check_place(handle, after, count)) return bad;
  const Graph* child = find(world().graphs, child_handle);
  if (child == nullptr) return unknown("graph", child_handle);
  if (child->is_captured || child_handle == handle || !child->at_launch.empty()) {
    return kInvalidValue;
  }
  Nested nested{.nodes = std::make_shared<const std::vector<Node>>(child->nodes)};
  *node = world().add_node(handle, {after, after + count}, std::move(nested));
  return kSuccess;
}

Answer cuGraphAddKernelNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after,
                            std::size_t count, const KernelNodeParams* params) {
  if (const Answer bad = check_place(handle, after, count)) return bad;
  if ((params->function == nullptr) == (params->kernel == nullptr) || params->extra != nullptr) {
    return kInvalidValue;
  }
  const CUkernel kernel_handle =
      params->kernel != nullptr ? params->kernel : reinterpret_cast<CUkernel>(params->function);
  const Kernel* kernel = find(world().kernels, kernel_handle);
  if (kernel == nullptr) return unknown("kernel", kernel_handle);
  if (params->kernel != nullptr && !world().is_context(params->context)) {
    return world().fault("a node is for a context that nobody retains", kInvalidContext);
  }
  if (!kernel->is_loaded) {
    world().fault("kernel " + kernel->name + " is loaded by a graph", kSuccess);
  }
  Launch launch{kernel_handle,
                {params->blocks_x, params->blocks_y, params->blocks_z},
                {params->threads_x, params->threads_y, params->threads_z},
                params->shared_bytes,
                copy_arguments(kernel->name, params->arguments)};
  *node = world().add_node(handle, {after, after + count}, std::move(launch));
  return kSuccess;
}

Answer cuGraphConditionalHandleCreate(ConditionHandle* condition, CUgraph handle, CUcontext context,
                                      unsigned at_launch, unsigned flags) {
  Graph* graph = find(world().graphs, handle);
  if (graph == nullptr) return unknown("graph", handle);
  if (!world().is_context(context)) return kInvalidContext;
  if (flags > kConditionSetAtLaunch) return kInvalidValue;
  *condition = world().next();
  world().conditions[*condition] = 0;
  if (flags == kConditionSetAtLaunch) graph->at_launch[*condition] = at_launch;
  return kSuccess;
}

// Rose adds IF nodes with it, and nothing else.
Answer cuGraphAddNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after,
                      const GraphEdge* edges, std::size_t count, GraphNodeParams* params) {
  if (const Answer bad = check_place(handle, after, count)) return bad;
  ConditionalNodeParams& conditional = params->conditional;
  if (params->type != kNodeConditional || edges != nullptr || conditional.kind != kConditionIf ||
      conditional.size != 1 || find(world().conditions, conditional.handle) == nullptr) {
    return kInvalidValue;
  }
  if (!world().is_context(conditional.context)) return kInvalidContext;
  const auto body = make_handle<CUgraph>();
  world().graphs[body].is_body = true;
  world().bodies[handle].push_back(body);
  *node = world().add_node(handle, {after, after + count},
                           Nested{.condition = conditional.handle, .body = body});
  // The driver's own array, for as long as the node lives.
  conditional.bodies = &world().bodies[handle].back();
  return kSuccess;
}

// What a body may hold: no memory operations and no events.
bool is_for_body(const std::vector<Node>& nodes) {
  return std::ranges::all_of(nodes, [](const Node& node) {
    const auto* nested = std::get_if<Nested>(&node.work);
    if (nested != nullptr) return nested->nodes != nullptr && is_for_body(*nested->nodes);
    return !std::holds_alternative<Batch>(node.work) && !std::holds_alternative<Record>(node.work);
  });
}

Answer cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph handle,
                                   unsigned long long flags) {
  const Graph* graph = find(world().graphs, handle);
  if (graph == nullptr) return unknown("graph", handle);
  if (graph->is_captured || graph->is_body || flags > kGraphFreesAtLaunch) return kInvalidValue;
  Executable made{graph->nodes, graph->at_launch};
  for (Node& node : made.nodes) {
    auto* nested = std::get_if<Nested>(&node.work);
    if (nested == nullptr || nested->body == nullptr) continue;
    const std::vector<Node>& body = world().graphs[nested->body].nodes;
    if (!is_for_body(body)) return kInvalidValue;
    nested->nodes = std::make_shared<const std::vector<Node>>(body);
  }
  *executable = make_handle<CUgraphExec>();
  world().executables[*executable] = std::move(made);
  return kSuccess;
}

Answer cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  const auto* known = find(world().executables, executable);
  if (known == nullptr) return unknown("executable graph", executable);
  return world().issue(stream,
                       std::make_shared<GraphRun>(GraphRun{known->nodes, known->at_launch}));
}

Answer cuGraphExecDestroy(CUgraphExec executable) {
  if (world().executables.erase(executable) == 0) return unknown("executable graph", executable);
  return kSuccess;
}

Answer cuGraphDestroy(CUgraph handle) {
  const Graph* graph = find(world().graphs, handle);
  if (graph == nullptr || graph->is_captured || graph->is_body) return unknown("graph", handle);
  for (const CUgraph body : world().bodies[handle]) world().graphs.erase(body);
  world().bodies.erase(handle);
  world().graphs.erase(handle);
  return kSuccess;
}

}  // namespace does

// ---- what surrounds each of them

enum Index {
#define FAKE_INDEX(name, version, need, arguments) kIndex_##name,
  ROSE_CUDA_ENTRIES(FAKE_INDEX)
#undef FAKE_INDEX
      kEntries
};

constexpr const char* kNames[] = {
#define FAKE_NAME(name, version, need, arguments) #name,
    ROSE_CUDA_ENTRIES(FAKE_NAME)
#undef FAKE_NAME
};

constexpr bool is_one_of(std::string_view name, std::initializer_list<std::string_view> all) {
  return std::ranges::find(all, name) != all.end();
}

constexpr bool gives_back(std::string_view name) {
  return is_one_of(
      name, {"cuDevicePrimaryCtxRelease", "cuCtxPopCurrent", "cuMemAddressFree", "cuMemRelease",
             "cuMemUnmap", "cuMemHostUnregister", "cuStreamDestroy", "cuEventDestroy",
             "cuLibraryUnload", "cuGraphExecDestroy", "cuGraphDestroy"});
}

constexpr bool needs_no_start(std::string_view name) {
  return is_one_of(name, {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"});
}

// The documentation says of these that no context need be current; of memory it says nothing.
constexpr bool needs_no_context(std::string_view name) {
  return needs_no_start(name) || name.starts_with("cuDev") || name.starts_with("cuLibrary") ||
         is_one_of(name, {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuModuleGetLoadingMode"});
}

// Calls that a thread may not make while a capture forbids it. The driver documents queries and
// allocations as examples; this list is longer, so that rose makes none of the others either.
constexpr bool is_unsafe_in_capture(std::string_view name) {
  const bool is_memory = name.starts_with("cuMem") && !name.ends_with("Async") &&
                         !is_one_of(name, {"cuMemGetInfo", "cuMemGetAllocationGranularity",
                                           "cuMemHostGetDevicePointer"});
  return is_memory || is_one_of(name, {"cuStreamQuery", "cuEventQuery", "cuEventElapsedTime",
                                       "cuStreamCreateWithPriority", "cuLibraryLoadData",
                                       "cuLibraryUnload", "cuKernelGetFunction"});
}

// Work in a stream: it takes a place in the launch queue.
constexpr bool is_launch(std::string_view name) {
  return is_one_of(name, {"cuLaunchKernel", "cuStreamBatchMemOp", "cuEventRecord", "cuGraphLaunch",
                          "cuMemsetD32Async"});
}

template <typename... A>
CUstream stream_among(A... arguments) {
  CUstream found = nullptr;
  const auto look = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), CUstream>) found = argument;
  };
  (look(arguments), ...);
  return found;
}

// Blocks the host, as a driver does, until at most `most` pieces of work are in the stream.
void wait_for_room(std::unique_lock<std::recursive_mutex>& turn, CUstream handle,
                   std::size_t most) {
  for (;;) {
    const Stream* stream = find_stream(handle);
    if (stream == nullptr || stream->capture || stream->queue.size() <= most) return;
    ++world().blocked;
    turn.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds{100});
    turn.lock();
    --world().blocked;
    world().pump();
  }
}

std::string shown(const char* text) {
  return text == nullptr ? "null" : "\"" + std::string{text} + "\"";
}
template <typename T>
std::string shown(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return hex(value);
  } else if constexpr (std::is_same_v<T, DevicePointer>) {
    return value < 0x1000 ? std::to_string(value) : hex(value);
  } else {
    return std::to_string(value);
  }
}

// Why a call may not even begin.
std::optional<Answer> refusal(const char* name) {
  if (!needs_no_start(name) && !world().is_initialised) {
    return world().fault(std::string{name} + " before cuInit", kNotInitialized);
  }
  const ThreadContexts& mine = contexts();
  const bool is_excused = gives_back(name) && mine.is_push_refused;
  if (!needs_no_context(name) && mine.stack.empty() && !is_excused) {
    return world().fault(std::string{name} + " without a current context", kInvalidContext);
  }
  return {};
}

template <int kIndex, auto kDoes>
struct Entry;

template <int kIndex, typename... A, Answer (*kDoes)(A...)>
struct Entry<kIndex, kDoes> {
  static Answer call(A... arguments) {
    constexpr const char* kName = kNames[kIndex];
    std::unique_lock turn{world().mutex};
    world().pump();
    if constexpr (is_launch(kNames[kIndex])) {
      if (world().launch_queue > 0) {
        wait_for_room(turn, stream_among(arguments...), world().launch_queue - 1);
      }
    }
    std::string line = std::string{kName} + "(";
    const char* comma = "";
    ((line += comma + shown(arguments), comma = ", "), ...);
    line += ")";
    ++world().calls[kName];
    const std::size_t place = world().log.size();
    if (place < kLogLines) world().log.push_back(line);
    const Answer answer = answer_of(kName, arguments...);
    if (place < world().log.size()) world().log[place] += " = " + std::to_string(answer);
    world().pump();
    if constexpr (std::string_view{kNames[kIndex]} == "cuLaunchKernel") {
      if (world().is_launch_blocking) wait_for_room(turn, stream_among(arguments...), 0);
    }
    return answer;
  }

  static Answer answer_of(const char* name, A... arguments) {
    if (const auto refused = refusal(name)) return *refused;
    if (is_unsafe_in_capture(name) && world().spoil_captures()) return kCaptureUnsupported;
    const std::optional<Answer> failure = world().due_failure(name);
    if (!failure) return kDoes(arguments...);
    if (kIndex == kIndex_cuCtxPushCurrent) contexts().is_push_refused = true;
    if (gives_back(name)) kDoes(arguments...);
    if constexpr (kIndex == kIndex_cuStreamEndCapture) {
      // A capture ends also when something is wrong with it.
      Stream* stream = find_stream(std::get<0>(std::tuple{arguments...}));
      if (stream != nullptr && stream->capture) world().end_capture(*stream, false);
    }
    return *failure;
  }
};

struct Row {
  std::string_view name;
  int version;
  void* function;
};
const Row kRows[] = {
#define FAKE_ROW(name, version, need, arguments) \
  {#name, version, reinterpret_cast<void*>(&Entry<kIndex_##name, &does::name>::call)},
    ROSE_CUDA_ENTRIES(FAKE_ROW)
#undef FAKE_ROW
};

}  // namespace
}  // namespace fake

// A name is known at the version of the table only: at another one the driver would give a function
// with another signature.
extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(
    const char* name, void** function, int version, std::uint64_t flags, int* why_not) {
  using namespace fake;
  const std::lock_guard turn{world().mutex};
  *function = nullptr;
  *why_not = 1;
  if (flags != 0 || version > world().version) return kInvalidValue;
  if (world().missing.contains(name)) return kSuccess;
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    if (row.version != version) {
      world().fault(std::string{name} + " is asked for at version " + std::to_string(version),
                    kSuccess);
      *why_not = 2;
      return kSuccess;
    }
    *function = row.function;
    *why_not = 0;
  }
  return kSuccess;
}
