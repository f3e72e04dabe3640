// The extension module: the simulator of a cluster for Python, arrays in, arrays out.
//
// The scheduler's core, an argument of run(), is a class of rose._core.
// bench/lab/rose_lab/sim/cluster/simulate.py has checked the inputs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "sim/cluster.h"

namespace rose::bind {

namespace py = pybind11;
using sim::Cluster;
using sim::ClusterOutcome;
using sim::JobSpec;
using sim::Lending;
using sim::WorkerSpec;
using sim::World;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Integers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// NaN for an event that never happened.
double moment_ms_of(Nanoseconds ns) {
  return ns == sim::kNone ? std::numeric_limits<double>::quiet_NaN() : ms_of(ns);
}

template <typename T>
std::vector<T> vector_of(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
  return {array.data(), array.data() + array.size()};
}

std::vector<Nanoseconds> all_ns_of(const Doubles& ms) {
  std::vector<Nanoseconds> ns(static_cast<std::size_t>(ms.size()));
  for (std::size_t i = 0; i < ns.size(); ++i) ns[i] = ns_of(ms.data()[i]);
  return ns;
}

template <typename T>
py::array_t<T> array_of(const std::vector<T>& numbers) {
  return py::array_t<T>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
}

py::array_t<double> all_ms_of(const std::vector<Nanoseconds>& ns) {
  std::vector<double> ms;
  for (const Nanoseconds one : ns) ms.push_back(moment_ms_of(one));
  return array_of(ms);
}

void add_worker(World& world, std::int64_t number, int kind, std::int64_t domain, std::int64_t job,
                double prefill_tokens_per_s, double decode_step_ms, double decode_ms_per_sequence,
                double decode_ms_per_context_token, std::int64_t seats, std::int64_t kv_tokens,
                double start_up_ms, double update_ms, double pause_ms, const Doubles& at_ms,
                const Doubles& share, const Integers& lent_kv_tokens) {
  world.workers.push_back(
      WorkerSpec{.number = number,
                 .kind = static_cast<sim::WorkerKind>(kind),
                 .domain = domain,
                 .job = job,
                 .times = {prefill_tokens_per_s, decode_step_ms, decode_ms_per_sequence,
                           decode_ms_per_context_token},
                 .seats = seats,
                 .kv_tokens = kv_tokens,
                 .start_up_ns = ns_of(start_up_ms),
                 .update_ns = ns_of(update_ms),
                 .pause_ns = ns_of(pause_ms),
                 .lending = {all_ns_of(at_ms), vector_of(share), vector_of(lent_kv_tokens)}});
}

void add_job(World& world, std::int64_t job, const Integers& first_turn,
             const Integers& input_tokens, const Integers& output_tokens, const Doubles& tool_ms,
             const Integers& group, int mode, std::int64_t batch, double train_ms,
             std::int64_t max_staleness, double weight) {
  world.jobs.push_back(JobSpec{.job = job,
                               .first_turn = vector_of(first_turn),
                               .input_tokens = vector_of(input_tokens),
                               .output_tokens = vector_of(output_tokens),
                               .tool_ns = all_ns_of(tool_ms),
                               .group = vector_of(group),
                               .mode = static_cast<sim::TrainerMode>(mode),
                               .batch = batch,
                               .train_ns = ns_of(train_ms),
                               .max_staleness = max_staleness,
                               .weight = weight});
}

std::unique_ptr<World> create_world(std::int64_t versions, double horizon_ms, double tick_ms,
                                    double gather_ms, double borrowed_report_ms,
                                    double dedicated_report_ms, std::int64_t chunk_tokens,
                                    bool is_stepwise, bool is_logged) {
  auto world = std::make_unique<World>();
  world->versions = versions;
  world->horizon_ns = ns_of(horizon_ms);
  world->knobs = {.tick_ns = ns_of(tick_ms),
                  .gather_ns = ns_of(gather_ms),
                  .borrowed_report_ns = ns_of(borrowed_report_ms),
                  .dedicated_report_ns = ns_of(dedicated_report_ms),
                  .chunk_tokens = chunk_tokens,
                  .is_stepwise = is_stepwise,
                  .is_logged = is_logged};
  return world;
}

py::dict dict_of(const sim::JobOutcome& job) {
  std::vector<Nanoseconds> published_ns;
  std::vector<Nanoseconds> rollout_ns;
  for (const sim::Rollout& version : job.versions) {
    published_ns.push_back(version.published_ns);
    rollout_ns.push_back(version.rollout_ns);
  }
  py::dict out;
  out["published_ms"] = all_ms_of(published_ns);
  out["rollout_ms"] = all_ms_of(rollout_ns);
  out["started_ms"] = all_ms_of(job.started_ns);
  out["done_ms"] = all_ms_of(job.done_ns);
  out["used_by"] = array_of(job.used_by);
  out["staleness"] = array_of(job.staleness);
  out["tokens_delivered"] = job.tokens_delivered;
  out["dropped"] = job.dropped;
  return out;
}

template <typename T>
py::list classes_of(const std::vector<T>& all) {
  py::list classes;
  for (const T& one : all) {
    classes.append(std::visit([](const auto& kind) { return py::cast(kind); }, one));
  }
  return classes;
}

py::list list_of(const std::vector<sim::LoggedStep>& log) {
  py::list steps;
  for (const sim::LoggedStep& step : log) {
    steps.append(py::make_tuple(step.now_ns, classes_of(step.events), classes_of(step.actions)));
  }
  return steps;
}

py::dict dict_of(const ClusterOutcome& outcome) {
  std::vector<double> busy_ms;
  for (const double ns : outcome.busy_ns_by_worker) busy_ms.push_back(ns / kNsPerMs);
  py::list jobs;
  for (const sim::JobOutcome& job : outcome.jobs) jobs.append(dict_of(job));
  py::dict out;
  out["jobs"] = jobs;
  out["ended_ms"] = ms_of(outcome.ended_ns);
  out["tokens_by_worker"] = array_of(outcome.tokens_by_worker);
  out["busy_ms_by_worker"] = array_of(busy_ms);
  out["revocations"] = outcome.revocations;
  out["recalls"] = outcome.recalls;
  out["reprefill_tokens"] = outcome.reprefill_tokens;
  out["tokens_lost"] = outcome.tokens_lost;
  out["recovery_ms"] = all_ms_of(outcome.recovery_ns);
  out["events"] = outcome.events;
  out["decisions"] = outcome.decisions;
  out["digest"] = outcome.digest;
  out["log"] = list_of(outcome.log);
  return out;
}

// Asks Python whether to go on; nothing if it raised. No object with a destructor is held while
// Python runs, as or_park() requires.
std::optional<bool> ask(const py::object& on_progress, double now_ms, std::int64_t events) {
  if (PyErr_CheckSignals() != 0) return std::nullopt;
  if (on_progress.is_none()) return true;
  PyObject* const answer = or_park([&] {
    return PyObject_CallFunction(on_progress.ptr(), "dL", now_ms, static_cast<long long>(events));
  });
  if (answer == nullptr) return std::nullopt;
  const int is_true = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return is_true < 0 ? std::nullopt : std::optional{is_true == 1};
}

py::dict run_world(const World& world, scheduler::Core& core, const py::object& on_progress) {
  Cluster cluster{world, core};
  bool has_raised = false;
  Status status;
  {
    GilReleased released;
    status = cluster.run([&](Nanoseconds now_ns, std::int64_t events) {
      const GilRetaken retaken{released};
      const std::optional<bool> answer = ask(on_progress, ms_of(now_ns), events);
      has_raised = !answer.has_value();
      return answer.value_or(false);
    });
  }
  if (has_raised) throw py::error_already_set{};
  check(status);
  return dict_of(cluster.outcome());
}

}  // namespace

}  // namespace rose::bind

PYBIND11_MODULE(_sim, module) {
  namespace py = pybind11;
  using namespace rose::bind;
  module.doc() = "A cluster in virtual time.";
  py::module_::import("rose._core");
  py::class_<World>(module, "ClusterWorld")
      .def(py::init(&create_world), py::kw_only(), py::arg("versions"), py::arg("horizon_ms"),
           py::arg("tick_ms"), py::arg("gather_ms"), py::arg("borrowed_report_ms"),
           py::arg("dedicated_report_ms"), py::arg("chunk_tokens"), py::arg("is_stepwise"),
           py::arg("is_logged"))
      .def("add_worker", &add_worker, py::kw_only(), py::arg("number"), py::arg("kind"),
           py::arg("domain"), py::arg("job"), py::arg("prefill_tokens_per_s"),
           py::arg("decode_step_ms"), py::arg("decode_ms_per_sequence"),
           py::arg("decode_ms_per_context_token"), py::arg("seats"), py::arg("kv_tokens"),
           py::arg("start_up_ms"), py::arg("update_ms"), py::arg("pause_ms"), py::arg("at_ms"),
           py::arg("share"), py::arg("lent_kv_tokens"))
      .def("add_job", &add_job, py::kw_only(), py::arg("job"), py::arg("first_turn"),
           py::arg("input_tokens"), py::arg("output_tokens"), py::arg("tool_ms"), py::arg("group"),
           py::arg("mode"), py::arg("batch"), py::arg("train_ms"), py::arg("max_staleness"),
           py::arg("weight"))
      .def("run", &run_world, py::arg("core"), py::arg("on_progress") = py::none());
}
