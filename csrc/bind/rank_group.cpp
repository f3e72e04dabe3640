// Rank groups for Python: the leader, the gate of a rank, and the vote of its serving.
#include "compute/rank_group.h"

#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "bind/clock.h"
#include "bind/status.h"
#include "compute/rank_gate.h"
#include "compute/rank_vote.h"

namespace rose::bind {

namespace py = pybind11;
using compute::GroupAnswer;
using compute::GroupEnd;
using compute::RankGate;
using compute::RankGroup;
using compute::RankLeader;
using compute::RankVote;
using compute::SegmentNumber;
using compute::Verdict;

namespace {

FileDescriptor copy_of(int fd) {
  const int copy = ::dup(fd);
  if (copy < 0) raise(Status::invalid_argument("fd " + std::to_string(fd) + " is not open"));
  return FileDescriptor{copy};
}

std::pair<std::uint64_t, std::uint32_t> pair_of(SegmentNumber number) {
  return {number.step, number.index};
}

std::unique_ptr<RankGate> attach_rank_gate(int fd, std::uint32_t rank,
                                           std::shared_ptr<Clock> clock) {
  return take(RankGate::attach(copy_of(fd), rank, clock_or_boot(std::move(clock))));
}

std::unique_ptr<RankVote> attach_vote(int fd, std::uint32_t rank) {
  return take(RankVote::attach(copy_of(fd), rank));
}

// Credit that is there costs the rank no hand-over of the GIL; a wait always gives it up.
Verdict pass_rank_gate(RankGate& gate, double timeout_ms) {
  if (const auto verdict = gate.try_pass()) return *verdict;
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  const py::gil_scoped_release release;
  return gate.pass(timeout_ns);
}

py::object wait_vote_parked(RankVote& vote, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  std::optional<Nanoseconds> waited_ns;
  {
    const py::gil_scoped_release release;
    waited_ns = vote.wait_parked(timeout_ns);
  }
  return waited_ns ? py::cast(static_cast<double>(*waited_ns) / 1e6) : py::none();
}

void wait_demand(const RankVote& vote, std::uint32_t seen, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  const py::gil_scoped_release release;
  if (timeout_ns > 0) vote.wait_demand(seen, timeout_ns);
}

std::unique_ptr<RankLeader> create_leader(std::shared_ptr<RankGroup> group, double poll_ms) {
  if (!(poll_ms > 0)) raise(Status::invalid_argument("poll_ms must be > 0"));
  return std::make_unique<RankLeader>(std::move(group), ns_of_ms(poll_ms, "poll_ms"));
}

}  // namespace

void bind_rank_group(py::module_& module) {
  py::native_enum<GroupAnswer>(module, "GroupAnswer", "enum.Enum")
      .value("GRANTED", GroupAnswer::kGranted)
      .value("ENOUGH", GroupAnswer::kEnough)
      .value("NO_STEP", GroupAnswer::kNoStep)
      .value("NO_VOTE", GroupAnswer::kNoVote)
      .value("ABORTED", GroupAnswer::kAborted)
      .value("OVERTAKEN", GroupAnswer::kOvertaken)
      .value("SHUT_DOWN", GroupAnswer::kShutDown)
      .finalize();

  py::native_enum<GroupEnd>(module, "GroupEnd", "enum.Enum")
      .value("NONE", GroupEnd::kNone)
      .value("ASKED", GroupEnd::kAsked)
      .value("RANK_LEFT", GroupEnd::kRankLeft)
      .value("RANK_DIED", GroupEnd::kRankDied)
      .value("LEADER_LEFT", GroupEnd::kLeaderLeft)
      .value("LEADER_DIED", GroupEnd::kLeaderDied)
      .finalize();

  py::class_<RankGroup, std::shared_ptr<RankGroup>>(module, "RankGroup")
      .def(py::init([](std::uint32_t ranks, std::uint32_t quantum, std::uint64_t before_step) {
             return take(RankGroup::create(ranks, quantum, before_step));
           }),
           py::kw_only(), py::arg("ranks"), py::arg("quantum"), py::arg("before_step") = 0)
      .def("fileno", [](const RankGroup& group) { return group.fd().get(); })
      .def("grant", &RankGroup::grant, py::arg("segments"))
      .def("watch", &RankGroup::watch)
      .def("look", &RankGroup::look)
      .def("abort_step", &RankGroup::abort_step)
      .def("shut_down", &RankGroup::shut_down)
      .def("is_shut_down", &RankGroup::is_shut_down)
      .def_property_readonly("end", &RankGroup::end)
      .def_property_readonly("ranks", &RankGroup::ranks)
      .def_property_readonly("quantum", &RankGroup::quantum)
      .def_property_readonly("grants", &RankGroup::grants)
      .def_property_readonly("passed", [](const RankGroup& group) {
        return std::pair{pair_of(group.slowest()), pair_of(group.fastest())};
      });

  // ~RankLeader joins its thread; that thread never wants the GIL, but a wait is a wait.
  py::class_<RankLeader>(module, "RankLeader", py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&create_leader), py::arg("group").none(false), py::kw_only(),
           py::arg("poll_ms"))
      .def("start", [](RankLeader& leader) { check(leader.start()); })
      .def("stop", &RankLeader::stop, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("is_running", &RankLeader::is_running);

  py::class_<RankGate>(module, "RankGate")
      .def_static("attach", &attach_rank_gate, py::arg("fd"), py::arg("rank"), py::kw_only(),
                  py::arg("clock") = py::none())
      .def("begin_step", &RankGate::begin_step)
      .def("try_pass", &RankGate::try_pass)
      .def("pass_", &pass_rank_gate, py::kw_only(), py::arg("timeout_ms"))
      // A host that passed its gate is in its segment: nothing of the step waits anywhere.
      .def(
          "settle", [](const RankGate&, double) { return Verdict::kPassed; }, py::kw_only(),
          py::arg("timeout_ms"))
      .def("leave", &RankGate::leave)
      .def("end_step", &RankGate::end_step)
      .def("shut_down", &RankGate::shut_down)
      .def_property_readonly("rank", &RankGate::rank)
      .def_property_readonly("passed", [](const RankGate& gate) { return pair_of(gate.passed()); });

  py::class_<RankVote>(module, "RankVote")
      .def_static("attach", &attach_vote, py::arg("fd"), py::arg("rank"))
      .def("agree", &RankVote::agree, py::arg("segments"), py::kw_only(), py::arg("expected_epoch"))
      .def("close", &RankVote::close)
      .def("wait_parked", &wait_vote_parked, py::kw_only(), py::arg("timeout_ms"))
      .def("abort_step", &RankVote::abort_step)
      .def("wait_demand", &wait_demand, py::arg("seen"), py::kw_only(), py::arg("timeout_ms"))
      .def("agrees", &RankVote::agrees)
      .def("is_parked", &RankVote::is_parked)
      .def("is_in_step", &RankVote::is_in_step)
      .def("is_shut_down", &RankVote::is_shut_down)
      .def_property_readonly("demand", &RankVote::demand)
      .def_property_readonly("close_epoch", &RankVote::close_epoch)
      .def_property_readonly("passed", [](const RankVote& vote) { return pair_of(vote.passed()); })
      .def_property_readonly("credit_left", &RankVote::credit_left)
      .def_property_readonly("vote_left", &RankVote::vote_left)
      .def(
          "recent_segment_ms",
          [](const RankVote& vote, double share) {
            return static_cast<double>(vote.recent_segment_ns(share)) / 1e6;
          },
          py::kw_only(), py::arg("share"));
}

}  // namespace rose::bind
