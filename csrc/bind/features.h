// Batches of serving's steps from Python.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bind/status.h"
#include "slo/latency_model.h"
#include "slo/quantum.h"

namespace rose::bind {

// Decode sequences, context tokens and prefill tokens.
using FeatureValues = std::array<double, 3>;
using Batch = std::optional<FeatureValues>;

inline slo::Features features_of(const FeatureValues& values, const char* name) {
  for (const double value : values) {
    if (!(value >= 0 && value <= 1e9)) {
      raise(Status::invalid_argument(std::string{name} + " must hold values in 0..1e9, got " +
                                     std::to_string(value)));
    }
  }
  return {.decode_sequences = values[0], .context_tokens = values[1], .prefill_tokens = values[2]};
}

// `slots` must outlive the result.
inline std::optional<slo::CommittedBatch> batch_of(const Batch& values,
                                                   const std::vector<std::uint32_t>& slots) {
  if (!values) return std::nullopt;
  return slo::CommittedBatch{.features = features_of(*values, "batch"), .slots = slots};
}

}  // namespace rose::bind
