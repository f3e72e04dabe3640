// A number that tells whether two runs of the scheduler wanted the same things in the same order.
#pragma once

#include <cstdint>
#include <variant>

#include "scheduler/actions.h"

namespace rose::sim {

class Digest {
 public:
  void add(const scheduler::Action& action) noexcept {
    add(action.index());
    std::visit([&](const auto& one) { add_fields(one); }, action);
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  // Multiply and fold, twice: every bit of what came before counts.
  void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ULL;
    value_ ^= value_ >> 32;
    value_ *= 0xD6E8FEB86659FD93ULL;
    value_ ^= value_ >> 32;
  }
  template <typename... Fields>
  void add_all(Fields... fields) noexcept {
    (add(static_cast<std::uint64_t>(fields)), ...);
  }

  void add_fields(const scheduler::Admit& a) noexcept { add_all(a.trajectory); }
  void add_fields(const scheduler::Start& a) noexcept {
    add_all(a.trajectory, a.turn, a.worker, a.lease_epoch, a.first_token, a.max_new_tokens);
  }
  void add_fields(const scheduler::Stop& a) noexcept {
    add_all(a.trajectory, a.worker, a.lease_epoch);
  }
  void add_fields(const scheduler::Deliver& a) noexcept {
    add_all(a.trajectory, a.turn, a.event, a.skip, a.tokens);
  }
  void add_fields(const scheduler::TurnDone& a) noexcept { add_all(a.trajectory, a.turn); }
  void add_fields(const scheduler::Drop& a) noexcept { add_all(a.trajectory, a.reason); }

  std::uint64_t value_{0};
};

}  // namespace rose::sim
