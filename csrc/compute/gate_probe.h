// Which gate works here: tried on the real streams before anything is lent.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compute/stream_gate.h"

namespace rose::compute {

struct ProbeRequest {
  CUstream borrower{nullptr};
  std::vector<CUstream> serving;       // every stream that serving uses in this process
  std::optional<int> max_connections;  // CUDA_DEVICE_MAX_CONNECTIONS, if it is set
  std::shared_ptr<const driver::KernelLibrary> library{};  // as in StreamGateConfig
  // How long a gate must hold: long beside any wake-up, so what it lets through is seen by then.
  Nanoseconds hold_ns{2'000'000};
  bool in_one_process{true};  // serving and borrower share a context
  bool try_all{false};        // KERNEL too where MEMOP works
};

struct KindProbe {
  bool is_usable{false};
  bool is_stuck{false};  // it was opened and did not wake: the borrower's stream is of no more use
  std::string why;       // one sentence, also for a kind that is usable
  double wake_us{0};     // from the store that opens to the end of the gate, the best of a few
  double alias_us{0};    // the longest that an idle serving stream took while the borrower waited
};

struct GateChoice {
  GateKind kind{GateKind::kHost};
  std::string why;
};

struct GateProbe {
  KindProbe memop;
  KindProbe kernel;
  GateChoice choice;  // MEMOP before KERNEL before HOST
};

// Tries each kind on a gate of its own, in the borrower's stream: is it accepted, does it hold
// without credit and while closed, does an opening release it, and does a borrower that waits leave
// the serving streams alone. For use before serving starts: all streams idle, nothing else on the
// device. Takes a second at most, and refuses with a sentence. Leaves nothing behind unless a kind
// is stuck; then no other is tried.
GateProbe probe_gates(const driver::DevicePtr& device, const ProbeRequest& request) noexcept;

}  // namespace rose::compute
