// The latency model for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <vector>

#include "bind/status.h"
#include "slo/latency_model.h"

namespace rose::bind {

namespace py = pybind11;
using slo::ConformalState;
using slo::Features;
using slo::Forecast;
using slo::LatencyConfig;
using slo::LatencyModel;
using slo::LatencyState;

namespace {

LatencyConfig config_of(const std::array<double, 5>& prior_ms, double epsilon, double forgetting,
                        double adaptation, std::uint32_t window, std::uint32_t step_tokens) {
  return {.prior_ms = prior_ms,
          .epsilon = epsilon,
          .forgetting = forgetting,
          .adaptation = adaptation,
          .window = window,
          .step_tokens = step_tokens};
}

std::shared_ptr<LatencyModel> create_model(const std::array<double, 5>& prior_ms, double epsilon,
                                           double forgetting, double adaptation,
                                           std::uint32_t window, std::uint32_t step_tokens) {
  return take(LatencyModel::create(
      config_of(prior_ms, epsilon, forgetting, adaptation, window, step_tokens)));
}

std::shared_ptr<LatencyModel> restore_model(const LatencyState& state,
                                            const std::array<double, 5>& prior_ms, double epsilon,
                                            double forgetting, double adaptation,
                                            std::uint32_t window) {
  return take(LatencyModel::restore(
      config_of(prior_ms, epsilon, forgetting, adaptation, window, LatencyConfig{}.step_tokens),
      state));
}

LatencyState state_of(double epsilon, std::uint32_t step_tokens,
                      const std::array<double, 5>& weights,
                      const std::array<std::array<double, 5>, 5>& covariance,
                      const std::array<double, slo::kStepKinds>& levels,
                      std::array<std::vector<double>, slo::kStepKinds> scores,
                      const std::array<std::uint64_t, slo::kStepKinds>& seen,
                      std::uint64_t observations, std::uint64_t misses) {
  LatencyState out{.epsilon = epsilon,
                   .step_tokens = step_tokens,
                   .weights = weights,
                   .covariance = covariance,
                   .bounds = {},
                   .seen = seen,
                   .observations = observations,
                   .misses = misses};
  for (std::size_t kind = 0; kind < slo::kStepKinds; ++kind) {
    out.bounds[kind] = {.level = levels[kind], .scores = std::move(scores[kind])};
  }
  return out;
}

// Returns one field of the bounds, for each kind of step.
template <typename T>
std::array<T, slo::kStepKinds> of_bounds(const LatencyState& state, T ConformalState::* field) {
  std::array<T, slo::kStepKinds> out;
  for (std::size_t kind = 0; kind < slo::kStepKinds; ++kind) out[kind] = state.bounds[kind].*field;
  return out;
}

void bind_state(py::module_& module) {
  py::class_<LatencyState>(module, "LatencyState")
      .def(py::init(&state_of), py::kw_only(), py::arg("epsilon"), py::arg("step_tokens"),
           py::arg("weights"), py::arg("covariance"), py::arg("levels"), py::arg("scores"),
           py::arg("seen"), py::arg("observations"), py::arg("misses"))
      .def_readonly("epsilon", &LatencyState::epsilon)
      .def_readonly("step_tokens", &LatencyState::step_tokens)
      .def_readonly("weights", &LatencyState::weights)
      .def_readonly("covariance", &LatencyState::covariance)
      .def_property_readonly(
          "levels",
          [](const LatencyState& state) { return of_bounds(state, &ConformalState::level); })
      .def_property_readonly(
          "scores",
          [](const LatencyState& state) { return of_bounds(state, &ConformalState::scores); })
      .def_readonly("seen", &LatencyState::seen)
      .def_readonly("observations", &LatencyState::observations)
      .def_readonly("misses", &LatencyState::misses);
}

void bind_model(py::module_& module) {
  py::class_<Forecast>(module, "Forecast")
      .def_readonly("predicted_ms", &Forecast::predicted_ms)
      .def_readonly("upper_ms", &Forecast::upper_ms);

  py::class_<slo::Evidence>(module, "Evidence")
      .def_readonly("scores", &slo::Evidence::scores)
      .def_readonly("wanted", &slo::Evidence::wanted)
      .def_readonly("missing", &slo::Evidence::missing);

  py::class_<LatencyModel, std::shared_ptr<LatencyModel>>(module, "LatencyModel")
      .def(py::init(&create_model), py::kw_only(), py::arg("prior_ms"), py::arg("epsilon"),
           py::arg("forgetting"), py::arg("adaptation"), py::arg("window"), py::arg("step_tokens"))
      .def_static("restore", &restore_model, py::arg("state"), py::kw_only(), py::arg("prior_ms"),
                  py::arg("epsilon"), py::arg("forgetting"), py::arg("adaptation"),
                  py::arg("window"))
      .def("state", &LatencyModel::state)
      .def(
          "forecast",
          [](const LatencyModel& model, double decode_sequences, double context_tokens,
             double prefill_tokens) {
            return take(model.forecast({decode_sequences, context_tokens, prefill_tokens}));
          },
          py::kw_only(), py::arg("decode_sequences"), py::arg("context_tokens"),
          py::arg("prefill_tokens"))
      .def(
          "evidence",
          [](const LatencyModel& model, double decode_sequences, double context_tokens,
             double prefill_tokens) {
            return take(model.evidence({decode_sequences, context_tokens, prefill_tokens}));
          },
          py::kw_only(), py::arg("decode_sequences"), py::arg("context_tokens"),
          py::arg("prefill_tokens"))
      .def(
          "observe",
          [](LatencyModel& model, double actual_ms, double decode_sequences, double context_tokens,
             double prefill_tokens, bool is_after_loan) {
            return take(model.observe({decode_sequences, context_tokens, prefill_tokens}, actual_ms,
                                      is_after_loan));
          },
          py::arg("actual_ms"), py::kw_only(), py::arg("decode_sequences"),
          py::arg("context_tokens"), py::arg("prefill_tokens"), py::arg("is_after_loan") = false)
      .def_property_readonly("observations", &LatencyModel::observations)
      .def_property_readonly("coverage", &LatencyModel::coverage);
}

}  // namespace

void bind_latency(py::module_& module) {
  bind_state(module);
  bind_model(module);
}

}  // namespace rose::bind
