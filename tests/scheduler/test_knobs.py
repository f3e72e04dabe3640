"""A constant without a meaning is refused by name, whatever a trial gives it."""

import pytest

from rose.errors import InvalidArgument
from rose.scheduler import SchedulerSettings
from tests.scheduler.tuned import OWN, tuned

STANDARD = SchedulerSettings().values()
WHOLE = {
    *OWN,
    *(
        "attempts_max",
        "losses_max",
        "burst_prefill_tokens",
        "fair_lead_tokens",
        "mlfq_quantum_tokens",
    ),
    *("reserve_ahead_tokens", "turn_window", "version_window"),
}


def is_refused(name: str, value: float) -> bool:
    try:
        tuned(**{name: value})
    except InvalidArgument as error:
        return str(error).startswith(f"SchedulerSettings({name}={value:g}): must be a")
    return False


@pytest.mark.parametrize("name", STANDARD)
def test_what_can_mean_nothing_is_refused(name: str) -> None:
    for value in (-1, -1e-9, float("nan"), float("inf"), 1e16):
        assert is_refused(name, value), value
    if name in WHOLE:
        assert is_refused(name, STANDARD[name] + 0.5)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("displaced_share", 1, 1.5),
        ("displaced_share", 0.1, 0),
        ("mlfq_quantum_tokens", 1, 0),
        ("retry_ms", 0, 2e9),
        ("stall_ms", 1e-9, 0),
        ("reserve_quantile", 1, 1.01),
        ("reserve_quantile", 0.01, 0),
        ("pace_rate", 0, 1),
        ("max_staleness", 0, 0.5),
        ("batch_trajectories", 1, 0),
        ("turn_window", 1, 0),
    ],
)
def test_the_bounds_are_where_they_should_be(name: str, taken: float, refused: float) -> None:
    assert not is_refused(name, taken)
    assert is_refused(name, refused)


@pytest.mark.parametrize("name", STANDARD)
def test_a_constant_has_the_value_that_it_was_given(name: str) -> None:
    value = STANDARD[name] / 2 if name not in WHOLE else STANDARD[name] + 1
    assert tuned(**{name: value}).values() == pytest.approx({**STANDARD, name: value})


def test_a_name_that_is_none_or_a_setting_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no constant patience_ms"):
        SchedulerSettings(tuning={"patience_ms": 1})
    with pytest.raises(InvalidArgument, match="max_staleness must not be in tuning"):
        SchedulerSettings(tuning={"max_staleness": 1})
