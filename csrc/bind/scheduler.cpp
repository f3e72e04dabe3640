// The scheduler for Python: its events, its actions, and the core that turns the former into the
// latter.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bind/scheduler_structs.h"
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

template <typename Kind>
bool add_as(py::handle source, std::vector<Event>& events) {
  py::detail::make_caster<Kind> caster;
  if (!caster.load(source, false)) return false;
  events.emplace_back(py::detail::cast_op<Kind&>(caster));
  return true;
}

template <typename... Kinds>
bool add_any(py::handle source, std::vector<Event>& events, std::variant<Kinds...>*) {
  return (add_as<Kinds>(source, events) || ...);
}

// Not std::variant's caster, which tries every type twice, and in order.
void add_event(py::handle source, std::vector<Event>& events) {
  if (add_as<scheduler::TurnProgress>(source, events)) return;
  if (add_any(source, events, static_cast<Event*>(nullptr))) return;
  raise(
      Status::invalid_argument("the scheduler has no event like " + std::string{py::repr(source)}));
}

py::list step(Core& core, const py::sequence& sources, std::int64_t now_ns) {
  std::vector<Event> events;
  events.reserve(sources.size());
  for (const py::handle source : sources) add_event(source, events);
  std::vector<Action> actions;
  check(core.step(events, now_ns, actions));
  py::list answer{actions.size()};
  for (std::size_t i = 0; i < actions.size(); ++i) {
    answer[i] = std::visit([](const auto& action) { return py::cast(action); }, actions[i]);
  }
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
  bind_events(module);
  bind_actions(module);
  module.def("scheduler_knobs", &scheduler_knobs, py::arg("knobs"));
  py::class_<Core>(module, "SchedulerCore")
      .def(py::init(&create_core), py::kw_only(), py::arg("policy"), py::arg("knobs"))
      .def("step", &step, py::arg("events"), py::arg("now_ns"))
      .def("stats", &stats_of)
      .def("keep_grants", &Core::keep_grants, py::arg("until_ns"))
      .def("turns_on", &Core::turns_on, py::arg("worker"))
      .def_property_readonly("on_workers", &Core::on_workers)
      .def_property_readonly("is_idle", &Core::is_idle)
      .def("snapshot", &snapshot_of)
      .def_static("restored", &restored, py::arg("image"));
}

}  // namespace rose::bind
