#include "bind/scheduler_structs.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace rose::bind {

namespace py = pybind11;

namespace {

// An enumeration is passed as a member of Python's enumeration of that name, and read as the
// member's name.
template <typename Enum>
constexpr std::array<std::string_view, 0> kNames{};
template <>
constexpr std::array<std::string_view, 2> kNames<scheduler::WorkerKind>{"DEDICATED", "BORROWED"};
template <>
constexpr std::array<std::string_view, 4> kNames<scheduler::TurnEnd>{"FINISHED", "INTERRUPTED",
                                                                     "FAILED", "REFUSED"};
template <>
constexpr std::array<std::string_view, 5> kNames<scheduler::DropReason>{
    "FAILED", "GIVEN_UP", "REFUSED", "LOST", "VERSION"};

template <typename T>
struct AsPython {
  using Type = T;
  static T from(T value) { return value; }
  static T to(T value) { return value; }
};

template <typename T>
  requires std::is_enum_v<T>
struct AsPython<T> {
  using Type = py::object;
  static T from(const py::object& member) {
    const auto name = py::getattr(member, "_name_", py::none());
    const auto& names = kNames<T>;
    const auto found = py::isinstance<py::str>(name)
                           ? std::find(names.begin(), names.end(), name.cast<std::string_view>())
                           : names.end();
    if (found == names.end()) {
      throw py::type_error("not a member of the enumeration: " + std::string{py::repr(member)});
    }
    return static_cast<T>(found - names.begin());
  }
  static py::str to(T value) {
    return py::str{std::string{kNames<T>[static_cast<std::size_t>(value)]}};
  }
};

// A field that must be passed.
template <typename T, typename F>
struct Field {
  using Type = typename AsPython<F>::Type;
  const char* name;
  F T::* at;

  py::arg argument() const { return py::arg(name); }
  void set(T& one, const Type& value) const { one.*at = AsPython<F>::from(value); }
  auto get(const T& one) const { return AsPython<F>::to(one.*at); }
};
template <typename T, typename F>
Field(const char*, F T::*) -> Field<T, F>;

// A field that has a usual value.
template <typename T, typename F>
struct Usual {
  using Type = F;
  const char* name;
  F T::* at;
  F usual;

  py::arg_v argument() const { return py::arg(name) = usual; }
  void set(T& one, F value) const { one.*at = value; }
  F get(const T& one) const { return one.*at; }
};
template <typename T, typename F>
Usual(const char*, F T::*, F) -> Usual<T, F>;

// A field that is None in Python where C++ has -1.
template <typename T>
struct Maybe {
  using Type = std::optional<std::int64_t>;
  const char* name;
  std::int64_t T::* at;

  py::arg_v argument() const { return py::arg(name) = py::none(); }
  void set(T& one, const Type& value) const { one.*at = value.value_or(-1); }
  Type get(const T& one) const { return one.*at < 0 ? Type{} : Type{one.*at}; }
};
template <typename T>
Maybe(const char*, std::int64_t T::*) -> Maybe<T>;

// Binds a struct with its fields, in the order of the constructor's parameters.
template <typename T, typename... Fields>
void bind(py::module_& module, const char* name, const Fields&... fields) {
  py::class_<T> bound{module, name};
  bound.def(py::init([fields...](const typename Fields::Type&... values) {
              T one{};
              (fields.set(one, values), ...);
              return one;
            }),
            fields.argument()...);
  (bound.def_property_readonly(fields.name, [fields](const T& one) { return fields.get(one); }),
   ...);
  const auto all = [fields...](const T& one) { return py::make_tuple(fields.get(one)...); };
  bound.def(
      "__eq__",
      [all](const T& one, const py::object& other) {
        return py::isinstance<T>(other) && all(one).equal(all(other.cast<const T&>()));
      },
      py::arg("other"));
  bound.def("__repr__", [all, name](const T& one) {
    return std::string{name} + std::string{py::repr(all(one))};
  });
}

}  // namespace

void bind_events(py::module_& module) {
  using namespace scheduler;
  bind<WorkerJoined>(
      module, "WorkerJoined", Field{"worker", &WorkerJoined::worker},
      Field{"kind", &WorkerJoined::kind}, Field{"domain", &WorkerJoined::domain},
      Field{"seats", &WorkerJoined::seats},
      Field{"prefill_tokens_per_s", &WorkerJoined::prefill_tokens_per_s},
      Field{"decode_step_ms", &WorkerJoined::decode_step_ms},
      Field{"decode_ms_per_sequence", &WorkerJoined::decode_ms_per_sequence},
      Field{"version", &WorkerJoined::version}, Usual{"job", &WorkerJoined::job, JobId{0}},
      Maybe{"device", &WorkerJoined::device},
      Usual{"decode_ms_per_context_token", &WorkerJoined::decode_ms_per_context_token, 0.0});
  bind<WorkerMeasured>(module, "WorkerMeasured", Field{"worker", &WorkerMeasured::worker},
                       Field{"prefill_tokens_per_s", &WorkerMeasured::prefill_tokens_per_s},
                       Field{"decode_step_ms", &WorkerMeasured::decode_step_ms},
                       Field{"decode_ms_per_sequence", &WorkerMeasured::decode_ms_per_sequence});
  bind<WorkerDrained>(module, "WorkerDrained", Field{"worker", &WorkerDrained::worker});
  bind<GrantChanged>(module, "GrantChanged", Field{"worker", &GrantChanged::worker},
                     Field{"grant_epoch", &GrantChanged::grant_epoch},
                     Field{"kv_tokens", &GrantChanged::kv_tokens},
                     Field{"ttl_ms", &GrantChanged::ttl_ms});
  bind<WorkerLost>(module, "WorkerLost", Field{"worker", &WorkerLost::worker},
                   Usual{"is_crash", &WorkerLost::is_crash, true});
  bind<VersionPublished>(module, "VersionPublished", Field{"version", &VersionPublished::version},
                         Usual{"job", &VersionPublished::job, JobId{0}});
  bind<VersionCommitted>(module, "VersionCommitted", Field{"worker", &VersionCommitted::worker},
                         Field{"version", &VersionCommitted::version});
  bind<TrajectoryCreated>(module, "TrajectoryCreated",
                          Field{"trajectory", &TrajectoryCreated::trajectory},
                          Usual{"group", &TrajectoryCreated::group, GroupId{0}},
                          Usual{"job", &TrajectoryCreated::job, JobId{0}});
  bind<TurnReady>(module, "TurnReady", Field{"trajectory", &TurnReady::trajectory},
                  Field{"turn", &TurnReady::turn},
                  Field{"context_tokens", &TurnReady::context_tokens},
                  Field{"max_new_tokens", &TurnReady::max_new_tokens},
                  Usual{"version_min", &TurnReady::version_min, std::int64_t{0}},
                  Usual{"version_max", &TurnReady::version_max, kCountMax});
  bind<TurnCut>(module, "TurnCut", Field{"trajectory", &TurnCut::trajectory},
                Field{"turn", &TurnCut::turn}, Field{"tokens", &TurnCut::tokens});
  bind<TurnProgress>(module, "TurnProgress", Field{"trajectory", &TurnProgress::trajectory},
                     Field{"turn", &TurnProgress::turn}, Field{"worker", &TurnProgress::worker},
                     Field{"grant_epoch", &TurnProgress::grant_epoch},
                     Field{"first_token", &TurnProgress::first_token},
                     Field{"tokens", &TurnProgress::tokens},
                     Field{"version_min", &TurnProgress::version_min},
                     Field{"version_max", &TurnProgress::version_max});
  bind<TurnEnded>(module, "TurnEnded", Field{"trajectory", &TurnEnded::trajectory},
                  Field{"turn", &TurnEnded::turn}, Field{"worker", &TurnEnded::worker},
                  Field{"grant_epoch", &TurnEnded::grant_epoch}, Field{"end", &TurnEnded::end},
                  Maybe{"tokens", &TurnEnded::tokens});
  bind<TrajectoryEnded>(module, "TrajectoryEnded",
                        Field{"trajectory", &TrajectoryEnded::trajectory});
  bind<Consumed>(module, "Consumed", Field{"trajectories", &Consumed::trajectories},
                 Usual{"job", &Consumed::job, JobId{0}});
  bind<JobJoined>(module, "JobJoined", Field{"job", &JobJoined::job},
                  Field{"batch_trajectories", &JobJoined::batch_trajectories},
                  Field{"max_staleness", &JobJoined::max_staleness},
                  Field{"weight", &JobJoined::weight});
  bind<Paused>(module, "Paused", Field{"is_recalling", &Paused::is_recalling});
  bind<Resumed>(module, "Resumed");
}

void bind_actions(py::module_& module) {
  using namespace scheduler;
  bind<Admit>(module, "Admit", Field{"trajectory", &Admit::trajectory});
  bind<Start>(module, "Start", Field{"trajectory", &Start::trajectory}, Field{"turn", &Start::turn},
              Field{"worker", &Start::worker}, Field{"grant_epoch", &Start::grant_epoch},
              Field{"first_token", &Start::first_token},
              Field{"max_new_tokens", &Start::max_new_tokens});
  bind<Stop>(module, "Stop", Field{"trajectory", &Stop::trajectory}, Field{"worker", &Stop::worker},
             Field{"grant_epoch", &Stop::grant_epoch});
  bind<Deliver>(module, "Deliver", Field{"trajectory", &Deliver::trajectory},
                Field{"turn", &Deliver::turn}, Field{"event", &Deliver::event},
                Field{"skip", &Deliver::skip}, Field{"tokens", &Deliver::tokens});
  bind<TurnDone>(module, "TurnDone", Field{"trajectory", &TurnDone::trajectory},
                 Field{"turn", &TurnDone::turn});
  bind<Drop>(module, "Drop", Field{"trajectory", &Drop::trajectory},
             Field{"reason", &Drop::reason});
}

}  // namespace rose::bind
