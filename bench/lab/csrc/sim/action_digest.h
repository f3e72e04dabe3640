// A hash of a run's actions in order, to compare two runs of the scheduler.
#pragma once

#include <cstdint>
#include <tuple>
#include <variant>

#include "base/fields.h"
#include "scheduler/actions.h"

namespace rose::sim {

class ActionDigest {
 public:
  void add(const scheduler::Action& action) noexcept {
    add(action.index());
    std::visit(
        [this](const auto& one) {
          std::apply([this](auto... fields) { (add(static_cast<std::uint64_t>(fields)), ...); },
                     fields_of(one));
        },
        action);
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  // Multiply and fold twice, so that every earlier bit affects the value.
  void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ULL;
    value_ ^= value_ >> 32;
    value_ *= 0xD6E8FEB86659FD93ULL;
    value_ ^= value_ >> 32;
  }

  std::uint64_t value_{0};
};

}  // namespace rose::sim
