"""A knob without a meaning is refused by name, in every dataclass of knobs."""

from dataclasses import fields

import pytest

from rose.errors import InvalidArgument
from rose.scheduler import SchedulerSettings
from rose.scheduler.broker.settings import BrokerSettings

KNOBS = [
    (kind, knob.name, knob.type in (int, "int"))
    for kind in (SchedulerSettings, BrokerSettings)
    for knob in fields(kind)
]


def is_refused(kind, **knob) -> bool:
    ((name, value),) = knob.items()
    try:
        kind(**knob)
    except InvalidArgument as error:
        text = str(error)
        assert text == f"{kind.__name__}({name}={value}) is out of range"
        return True
    return False


@pytest.mark.parametrize(("kind", "name", "is_whole"), KNOBS)
def test_what_can_mean_nothing_is_refused(kind, name, is_whole) -> None:
    for value in (-1, -1e-9, float("nan"), float("inf"), 1e16):
        assert is_refused(kind, **{name: value}), value
    if is_whole:
        assert is_refused(kind, **{name: 1.5})


@pytest.mark.parametrize(
    ("kind", "name", "taken", "refused"),
    [
        (SchedulerSettings, "retry_ms", 0, 2e9),
        (SchedulerSettings, "stall_ms", 1e-9, 0),
        (SchedulerSettings, "reserve_quantile", 1, 1.01),
        (SchedulerSettings, "reserve_quantile", 0.01, 0),
        (SchedulerSettings, "pace_rate", 0, 1),
        (BrokerSettings, "settle_ms", 0, 2e15),
        (BrokerSettings, "stale_after_ms", 1e-9, 0),
        (BrokerSettings, "lend_share", 1, 0),
        (BrokerSettings, "ttl_share", 0.01, 1.01),
        (BrokerSettings, "keep_share", 0, 1),
        (BrokerSettings, "hold_growth", 100, 101),
        (BrokerSettings, "hold_growth", 1.01, 1),
    ],
)
def test_the_bounds_of_a_knob_are_where_it_says(kind, name, taken, refused) -> None:
    assert not is_refused(kind, **{name: taken})
    assert is_refused(kind, **{name: refused})
