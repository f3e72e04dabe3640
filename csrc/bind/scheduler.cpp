// The scheduler for Python: rows of numbers in, rows of numbers out, one crossing per step.
//
// A row is a tuple: a code, which is the place of the type in `Event` or `Action`, then the fields
// in the order of the struct. rose/scheduler/core.py makes them from dataclasses, and back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bind/clock.h"
#include "bind/rows.h"
#include "bind/status.h"
#include "scheduler/core.h"

namespace rose::bind {

namespace py = pybind11;
using scheduler::Action;
using scheduler::Core;
using scheduler::Event;
using scheduler::Policy;
using scheduler::Settings;
using scheduler::Stats;

namespace {

// The fields of one event, read in order.
class Row {
 public:
  explicit Row(py::handle row) : row_{row.ptr()} {
    if (!PyTuple_Check(row_)) raise(Status::invalid_argument("an event is not a row"));
  }

  template <typename T>
  T take() {
    PyObject* const item = PyTuple_GetItem(row_, next_++);  // borrowed
    if (item == nullptr) refuse("too short");
    if constexpr (std::is_floating_point_v<T>) {
      const double value = PyFloat_AsDouble(item);
      if (PyErr_Occurred() != nullptr) refuse("not made of numbers");
      return value;
    } else {
      const std::int64_t value = PyLong_AsLongLong(item);
      if (PyErr_Occurred() != nullptr) refuse("not made of integers of 64 bits");
      if constexpr (std::is_enum_v<T>) {
        if (!scheduler::is_value<T>(value)) refuse("of a kind that is not known");
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

// Braces read the fields of a row from left to right.
Event event_of(py::handle source) {
  using namespace scheduler;
  Row row{source};
  switch (integer(row)) {
    case 0:
      return WorkerJoined{integer(row),       row.take<WorkerKind>(), integer(row),
                          row.take<double>(), row.take<double>(),     row.take<double>(),
                          integer(row),       integer(row),           integer(row),
                          integer(row),       row.take<double>()};
    case 1:
      return LeaseChanged{integer(row), integer(row), integer(row), row.take<double>()};
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
  raise(Status::invalid_argument("there is no such event"));
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

// rose/scheduler/settings.py has checked the numbers.
std::unique_ptr<Core> create_core(
    int policy, std::int64_t max_staleness, std::int64_t batch_trajectories,
    std::int64_t worker_lag_max, double recall_grace_ms, double retry_ms, std::int64_t attempts_max,
    double stall_ms, double wait_max_ms, double tail_seats, double urgent_time_weight,
    double urgent_risk_weight, double staleness_s_per_version, double leave_home_margin_s,
    double hazard_per_s, double hazard_prior_s, double hazard_window_s, double hold_min_ms,
    double hold_max_ms, double flap_window_ms, double exposure_max_s, double urgent_share_max,
    std::int64_t burst_prefill_tokens, std::int64_t fair_lead_tokens, double requeue_ms,
    double turn_tokens_prior, double turns_prior, double token_ms_prior, double tool_ms_prior,
    double job_weight, std::int64_t turn_window, std::int64_t version_window,
    double reserve_quantile, std::int64_t reserve_ahead_tokens, double longest_first,
    double pace_rate, double displaced_share, double cache_wait_ms, double move_contexts,
    std::int64_t mlfq_quantum_tokens) {
  if (!scheduler::is_value<Policy>(policy)) {
    raise(Status::invalid_argument("there is no policy " + std::to_string(policy)));
  }
  return std::make_unique<Core>(Settings{.max_staleness = max_staleness,
                                         .batch_trajectories = batch_trajectories,
                                         .worker_lag_max = worker_lag_max,
                                         .recall_grace_ns = ns_of(recall_grace_ms),
                                         .retry_ns = ns_of(retry_ms),
                                         .attempts_max = attempts_max,
                                         .stall_ns = ns_of(stall_ms),
                                         .wait_max_ns = ns_of(wait_max_ms),
                                         .tail_seats = tail_seats,
                                         .urgent_time_weight = urgent_time_weight,
                                         .urgent_risk_weight = urgent_risk_weight,
                                         .staleness_s_per_version = staleness_s_per_version,
                                         .leave_home_margin_s = leave_home_margin_s,
                                         .hazard_per_s = hazard_per_s,
                                         .hazard_prior_s = hazard_prior_s,
                                         .hazard_window_s = hazard_window_s,
                                         .hold_min_ns = ns_of(hold_min_ms),
                                         .hold_max_ns = ns_of(hold_max_ms),
                                         .flap_window_ns = ns_of(flap_window_ms),
                                         .exposure_max_s = exposure_max_s,
                                         .urgent_share_max = urgent_share_max,
                                         .burst_prefill_tokens = burst_prefill_tokens,
                                         .fair_lead_tokens = fair_lead_tokens,
                                         .requeue_s = requeue_ms / kMsPerS,
                                         .turn_tokens_prior = turn_tokens_prior,
                                         .turns_prior = turns_prior,
                                         .token_s_prior = token_ms_prior / kMsPerS,
                                         .tool_s_prior = tool_ms_prior / kMsPerS,
                                         .job_weight = job_weight,
                                         .turn_window = turn_window,
                                         .version_window = version_window,
                                         .reserve_quantile = reserve_quantile,
                                         .reserve_ahead_tokens = reserve_ahead_tokens,
                                         .longest_first = longest_first,
                                         .pace_rate = pace_rate,
                                         .displaced_share = displaced_share,
                                         .cache_wait_ns = ns_of(cache_wait_ms),
                                         .move_contexts = move_contexts,
                                         .mlfq_quantum_tokens = mlfq_quantum_tokens},
                                static_cast<Policy>(policy));
}

}  // namespace

void bind_scheduler(py::module_& module) {
  py::class_<Core>(module, "SchedulerCore")
      .def(py::init(&create_core), py::kw_only(), py::arg("policy"), py::arg("max_staleness"),
           py::arg("batch_trajectories"), py::arg("worker_lag_max"), py::arg("recall_grace_ms"),
           py::arg("retry_ms"), py::arg("attempts_max"), py::arg("stall_ms"),
           py::arg("wait_max_ms"), py::arg("tail_seats"), py::arg("urgent_time_weight"),
           py::arg("urgent_risk_weight"), py::arg("staleness_s_per_version"),
           py::arg("leave_home_margin_s"), py::arg("hazard_per_s"), py::arg("hazard_prior_s"),
           py::arg("hazard_window_s"), py::arg("hold_min_ms"), py::arg("hold_max_ms"),
           py::arg("flap_window_ms"), py::arg("exposure_max_s"), py::arg("urgent_share_max"),
           py::arg("burst_prefill_tokens"), py::arg("fair_lead_tokens"), py::arg("requeue_ms"),
           py::arg("turn_tokens_prior"), py::arg("turns_prior"), py::arg("token_ms_prior"),
           py::arg("tool_ms_prior"), py::arg("job_weight"), py::arg("turn_window"),
           py::arg("version_window"), py::arg("reserve_quantile"), py::arg("reserve_ahead_tokens"),
           py::arg("longest_first"), py::arg("pace_rate"), py::arg("displaced_share"),
           py::arg("cache_wait_ms"), py::arg("move_contexts"), py::arg("mlfq_quantum_tokens"))
      .def("step", &step, py::arg("rows"), py::arg("now_ns"))
      .def("stats", &stats_of)
      .def("keep_leases", &Core::keep_leases, py::arg("until_ns"))
      .def("snapshot", &snapshot_of)
      .def_static("restored", &restored, py::arg("image"));
}

}  // namespace rose::bind
