// The scheduler for Python. Each step is one call, which takes and returns rows of numbers.
//
// A row is a tuple. Its first number is the index of the type in `Event` or `Action`; then follow
// the fields in the order of the struct. rose/scheduler/core.py converts dataclasses to rows and
// back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bind/rows.h"
#include "bind/status.h"
#include "scheduler/core.h"
#include "scheduler/standard.h"

namespace rose::bind {

namespace py = pybind11;
using scheduler::Action;
using scheduler::Core;
using scheduler::Event;
using scheduler::PlacementPolicy;
using scheduler::Settings;
using scheduler::Stats;

namespace {

// The fields of one event, read in order.
class Row {
 public:
  explicit Row(py::handle row) : row_{row.ptr()} {
    if (!PyTuple_Check(row_)) raise(Status::invalid_argument("an event must be a tuple"));
  }

  template <typename T>
  T take() {
    PyObject* const item = PyTuple_GetItem(row_, next_++);  // a borrowed reference
    if (item == nullptr) refuse("too short: its type has more fields");
    if constexpr (std::is_floating_point_v<T>) {
      const double value = PyFloat_AsDouble(item);
      if (PyErr_Occurred() != nullptr) refuse("not a row of numbers");
      return value;
    } else {
      const std::int64_t value = PyLong_AsLongLong(item);
      if (PyErr_Occurred() != nullptr) refuse("not a row of 64-bit integers");
      if constexpr (std::is_enum_v<T>) {
        if (!scheduler::is_value<T>(value)) refuse("out of range in an enum field");
      }
      return static_cast<T>(value);
    }
  }

 private:
  [[noreturn]] void refuse(const char* what) {
    PyErr_Clear();
    raise(Status::invalid_argument("the event with the row " +
                                   std::string{py::str(py::handle{row_})} + " is " + what));
  }

  PyObject* row_;
  py::ssize_t next_{0};
};

std::int64_t integer(Row& row) { return row.take<std::int64_t>(); }

// The braces evaluate the fields of a row from left to right.
Event event_of(py::handle source) {
  using namespace scheduler;
  Row row{source};
  const std::int64_t type = integer(row);
  switch (type) {
    case 0:
      return WorkerJoined{integer(row),       row.take<WorkerKind>(), integer(row),
                          row.take<double>(), row.take<double>(),     row.take<double>(),
                          integer(row),       integer(row),           integer(row),
                          integer(row),       row.take<double>()};
    case 1:
      return GrantChanged{integer(row), integer(row), integer(row), row.take<double>()};
    case 2:
      return WorkerLost{integer(row)};
    case 3:
      return VersionPublished{integer(row), integer(row)};
    case 4:
      return VersionCommitted{integer(row), integer(row)};
    case 5:
      return TrajectoryCreated{integer(row), integer(row), integer(row)};
    case 6:
      return TurnReady{integer(row), integer(row), integer(row), integer(row)};
    case 7:
      return TurnProgress{integer(row), integer(row), integer(row), integer(row),
                          integer(row), integer(row), integer(row)};
    case 8:
      return TurnEnded{integer(row), integer(row),        integer(row),
                       integer(row), row.take<TurnEnd>(), integer(row)};
    case 9:
      return TrajectoryEnded{integer(row)};
    case 10:
      return Consumed{integer(row), integer(row)};
    case 11:
      return JobJoined{integer(row), integer(row), integer(row), row.take<double>()};
    default:
      break;
  }
  raise(Status::invalid_argument("the first number of an event's row must be in 0..11, got " +
                                 std::to_string(type)));
}

py::list step(Core& core, const py::list& rows, std::int64_t now_ns) {
  std::vector<Event> events;
  events.reserve(rows.size());
  for (const py::handle row : rows) events.push_back(event_of(row));
  std::vector<Action> actions;
  check(core.step(events, now_ns, actions));
  py::list answer{actions.size()};
  for (std::size_t i = 0; i < actions.size(); ++i) answer[i] = row_of(actions[i]);
  return answer;
}

py::dict stats_of(const Core& core) {
  const Stats stats = core.stats();
  const scheduler::Counters& counters = stats.counters;
  py::dict out;
  out["waiting"] = stats.waiting;
  out["environment"] = stats.environment;
  out["queued"] = stats.queued;
  out["running"] = stats.running;
  out["recalled"] = stats.recalled;
  out["admitted"] = counters.admitted;
  out["consumed"] = counters.consumed;
  out["done"] = counters.done;
  out["dropped"] = counters.dropped;
  out["recalls"] = counters.recalls;
  out["outgrown"] = counters.outgrown;
  out["resumed"] = counters.resumed;
  out["stale_events"] = counters.stale_events;
  out["tokens_delivered"] = counters.tokens_delivered;
  out["tokens_ignored"] = counters.tokens_ignored;
  out["reprefill_tokens"] = counters.reprefill_tokens;
  out["turns_dedicated"] = counters.turns[0];
  out["turns_borrowed"] = counters.turns[1];
  out["used_tokens"] = stats.used_tokens;
  out["stale"] = stats.fates.stale().count();
  out["lengths_done"] = stats.fates.done().counts();
  out["lengths_stale"] = stats.fates.stale().counts();
  out["lengths_dropped"] = stats.fates.dropped().counts();
  out["length_bias"] = stats.fates.length_bias();
  py::dict jobs;
  for (const auto& [number, job] : stats.jobs) {
    jobs[py::int_(number)] = py::make_tuple(job.published, job.admitted, job.done, job.dropped,
                                            job.consumed, job.stale, job.length_bias);
  }
  out["jobs"] = jobs;
  out["hazards_per_s"] = stats.hazards_per_s;
  out["exposure_s"] = stats.exposure_s;
  out["recovery_bound_s"] = stats.recovery_bound_s;
  return out;
}

py::bytes snapshot_of(Core& core) {
  const std::vector<std::byte> bytes = core.snapshot();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::unique_ptr<Core> restored(const py::bytes& image) {
  const std::string_view bytes{image};
  auto core = Core::restored(std::as_bytes(std::span{bytes}));
  check(core.status());
  return core.take();
}

// Returns the settings of production, with the knobs named here changed.
Settings settings_of(const std::map<std::string, double>& knobs) {
  Settings settings = scheduler::kStandard;
  for (const auto& [name, value] : knobs) check(scheduler::tune(settings, name, value));
  return settings;
}

std::map<std::string, double> scheduler_knobs(const std::map<std::string, double>& knobs) {
  std::map<std::string, double> all;
  for (const auto& [name, value] : scheduler::tuned(settings_of(knobs))) all.emplace(name, value);
  return all;
}

std::unique_ptr<Core> create_core(int policy, const std::map<std::string, double>& knobs) {
  if (!scheduler::is_value<PlacementPolicy>(policy)) {
    raise(Status::invalid_argument("policy must be the number of a PlacementPolicy, got " +
                                   std::to_string(policy)));
  }
  return std::make_unique<Core>(settings_of(knobs), static_cast<PlacementPolicy>(policy));
}

}  // namespace

void bind_scheduler(py::module_& module) {
  module.def("scheduler_knobs", &scheduler_knobs, py::arg("knobs"));
  py::class_<Core>(module, "SchedulerCore")
      .def(py::init(&create_core), py::kw_only(), py::arg("policy"), py::arg("knobs"))
      .def("step", &step, py::arg("rows"), py::arg("now_ns"))
      .def("stats", &stats_of)
      .def("keep_grants", &Core::keep_grants, py::arg("until_ns"))
      .def("snapshot", &snapshot_of)
      .def_static("restored", &restored, py::arg("image"));
}

}  // namespace rose::bind
