#include "controls.h"

#include <sstream>

#include "world.h"

namespace fake {
namespace {

CUcontext foreign() { return reinterpret_cast<CUcontext>(0xf0f0); }

World& world() { return World::get(); }

// The mutex, for as long as a control runs.
struct Turn {
  const std::lock_guard<std::recursive_mutex> lock{world().mutex};
};

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

const char* lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& one : all) text += one + "\n";
  return keep(std::move(text));
}

Stream* find(CUstream handle) {
  Stream* stream = world().find_stream(handle);
  if (stream == nullptr) world().fault("a test names unknown stream " + hex(handle), kSuccess);
  return stream;
}

}  // namespace
}  // namespace fake

using namespace fake;

extern "C" {

#define FAKECUDA_EXPORT(name, result, arguments) \
  __attribute__((visibility("default"))) result fakecuda_##name arguments;
FAKECUDA_CONTROLS(FAKECUDA_EXPORT)
#undef FAKECUDA_EXPORT

const char* fakecuda_log() {
  const Turn turn;
  return lines(world().log);
}

unsigned fakecuda_calls(const char* name) {
  const Turn turn;
  return world().calls[name];
}

const char* fakecuda_kernels() {
  const Turn turn;
  return lines(world().executed);
}

const char* fakecuda_live() {
  const Turn turn;
  return keep(world().live());
}

const char* fakecuda_faults() {
  const Turn turn;
  return lines(world().faults);
}

void fakecuda_reset() {
  const Turn turn;
  world().reset();
}

void fakecuda_fail(const char* name, int nth, int code) {
  const Turn turn;
  world().failure = {name, nth, code};
}

int fakecuda_is_fail_pending() {
  const Turn turn;
  return world().failure.nth > 0;
}

void fakecuda_missing(const char* name) {
  const Turn turn;
  world().missing.insert(name);
}

void fakecuda_set_devices(int count) {
  const Turn turn;
  world().devices = count;
}

void fakecuda_set_version(int version) {
  const Turn turn;
  world().version = version;
}

void fakecuda_set_attribute(int attribute, int value) {
  const Turn turn;
  world().attributes[attribute] = value;
}

void fakecuda_set_memory(std::size_t bytes) {
  const Turn turn;
  world().memory_bytes = bytes;
}

void fakecuda_set_launch_queue(std::size_t count) {
  const Turn turn;
  world().launch_queue = count;
}

void fakecuda_set_launch_blocking(int is_blocking) {
  const Turn turn;
  world().is_launch_blocking = is_blocking != 0;
}

unsigned fakecuda_blocked() {
  const Turn turn;
  return world().blocked;
}

void fakecuda_push_foreign() {
  const Turn turn;
  contexts().stack.push_back(foreign());
}

int fakecuda_is_foreign_current() {
  const Turn turn;
  return !contexts().stack.empty() && contexts().stack.back() == foreign();
}

void fakecuda_pop_foreign() {
  const Turn turn;
  contexts().stack.pop_back();
}

int fakecuda_depth() {
  const Turn turn;
  return static_cast<int>(contexts().stack.size());
}

void fakecuda_pump() {
  const Turn turn;
  world().pump();
}

void fakecuda_hold(CUstream stream) {
  const Turn turn;
  if (Stream* one = find(stream)) one->is_held = true;
}

void fakecuda_release(CUstream stream) {
  const Turn turn;
  if (Stream* one = find(stream)) one->is_held = false;
  world().pump();
}

void fakecuda_advance(CUstream stream) {
  const Turn turn;
  fakecuda_release(stream);
  fakecuda_hold(stream);
}

unsigned fakecuda_pending(CUstream stream) {
  const Turn turn;
  const Stream* one = find(stream);
  return one == nullptr ? 0 : static_cast<unsigned>(one->queue.size());
}

void fakecuda_invalidate(CUstream stream) {
  const Turn turn;
  Stream* one = find(stream);
  if (one != nullptr && one->capture) one->capture->status = kCaptureStatusInvalidated;
}

void fakecuda_arguments(const char* kernel, const char* sizes) {
  const Turn turn;
  std::istringstream text{sizes};
  std::vector<std::size_t>& all = world().argument_sizes[kernel];
  all.clear();
  for (std::size_t one = 0; text >> one;) all.push_back(one);
}

void fakecuda_on_kernel(const char* kernel, FakeKernel run, void* context) {
  const Turn turn;
  world().on_kernel[kernel] = {run, context};
}

void fakecuda_set_condition(std::uint64_t condition, unsigned value) {
  const Turn turn;
  if (!world().conditions.contains(condition)) {
    world().fault("a kernel sets unknown condition " + hex(condition), kSuccess);
  }
  world().conditions[condition] = value;
}

}  // extern "C"
