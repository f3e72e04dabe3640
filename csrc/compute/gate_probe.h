// Finds a gate that works here, by tests on the real streams before anything is lent.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compute/stream_gate.h"

namespace rose::compute {

struct ProbeRequest {
  CUstream borrower{nullptr};
  // Every stream that serving uses in this process. The legacy default stream and a stream of
  // default priority, like those of torch's pools, are tested as well.
  std::vector<CUstream> serving;
  std::optional<int> max_connections;  // CUDA_DEVICE_MAX_CONNECTIONS, if it is set
  std::shared_ptr<const driver::KernelLibrary> library{};  // as in StreamGateConfig
  // Time after which a launch that has not returned counts as blocked by the gate.
  Nanoseconds launch_ns{200'000'000};
  // Time for which a gate must hold: much longer than a wake-up, so that a gate which lets work
  // through is detected.
  Nanoseconds hold_ns{2'000'000};
  bool in_one_process{true};  // serving and borrower share a context
  bool try_all{false};        // test KERNEL even if MEMOP works
};

struct KindProbe {
  bool is_usable{false};
  bool is_stuck{false};  // the stream still waited after the opening: it is unusable
  std::string why;       // one sentence, also for a usable kind
  double wake_us{0};     // shortest time from an opening until the stream had passed the gate
  double alias_us{0};    // longest time of a kernel in a serving stream while the borrower waited
};

struct GateChoice {
  GateKind kind{GateKind::kHost};
  std::string why;
};

struct GateProbe {
  KindProbe memop;
  KindProbe kernel;
  GateChoice choice;  // the first usable kind of MEMOP, KERNEL and HOST
};

// Tests each kind with its own gate in the borrower's stream. A kind is usable if
//   - the driver accepts the gate,
//   - the gate holds without credit and while closed, and an opening releases it,
//   - launches behind the gate return,
//   - a waiting borrower delays no kernel in serving's streams (in a build without device code: no
//     event),
//   - and a kernel that needs all shared memory of every multiprocessor runs at once beside it.
// Call this before serving starts, with idle streams and nothing else on the device. The call takes
// at most a second, and every refusal has a reason. The call leaves nothing behind unless a kind is
// stuck; then no other kind is tested.
GateProbe probe_gates(const driver::DevicePtr& device, const ProbeRequest& request) noexcept;

}  // namespace rose::compute
