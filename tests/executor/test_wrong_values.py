"""Every public method with every wrong value: the caller's error, which ends no lending."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rose.api.borrower import Borrower, BorrowerStep
from rose.api.serving import Serving
from rose.api.serving import ServingStep as ApiServingStep
from rose.errors import InvalidArgument, RoseError
from rose.executor import Quantum, ServingLane, StepBatch
from rose.executor.serving import ServingStep
from tests.executor.conftest import Rig


class EngineError(Exception):
    """An error in code of the engine that rose calls."""


class Hostile:
    """An object that fails whatever is done with it."""

    def _fail(self, *_: object) -> Any:
        raise EngineError("an object of the engine")

    __iter__ = __bool__ = __len__ = __int__ = __index__ = __float__ = __repr__ = __eq__ = _fail
    __hash__ = None  # type: ignore[assignment]


def _failing_ids() -> Iterator[str]:
    yield "live"
    raise EngineError("a generator of the engine")


def wrong_values() -> list[Any]:
    """Values of all kinds, made anew for each call because some can be used up."""
    numbers = (-1, 1 << 40, 1 << 70, 10**5000, 1.5, math.nan, -math.inf, True)
    others = (None, "x", b"x", [], [1], [[1]], [None], {}, {"x": 1}, {1}, object(), Hostile())
    return [*numbers, *others, _failing_ids(), StepBatch(1, 1, 1, requests=None)]  # type: ignore[arg-type]


# Called by rose itself, never by an engine.
_OURS = {"begin_step", "lend_within", "end_step", "lend_by", "give_step_up"}


def public(owner: type) -> list[str]:
    return [
        name
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and name not in _OURS
    ]


def calls_of(method: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """One call for each parameter and wrong value; the other parameters have a sound value."""
    parameters = inspect.signature(method).parameters
    sound = {"request_id": "new", "prompt_tokens": 1, "request_ids": ("live",), "blocks": 1}
    sound |= {"tokens": 1, "batch": None, "run": lambda _batch: None, "slabs": [], "pin": 0}
    given = {name: sound.get(name) for name, one in parameters.items() if one.default is one.empty}
    for name in parameters:
        for value in wrong_values():
            yield given | {name: value}


@pytest.fixture
def rig(open_rig: Callable[..., Rig]) -> Rig:
    made = open_rig()
    made.held = made.borrow(8)
    return made


def check_lends(rig: Rig, why: object) -> None:
    assert rig.device.gave_back is None, why


def every_call(owner: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in public(type(owner)):
        for arguments in calls_of(getattr(owner, name)):
            yield name, arguments


def test_serving_lane_raises_nothing(rig: Rig) -> None:
    serving = rig.serving
    serving.arrived("live", prompt_tokens=1)
    for name, arguments in every_call(serving):
        answer = getattr(serving, name)(**arguments)
        if isinstance(answer, ServingStep) or hasattr(answer, "__enter__"):
            with answer:
                pass
        serving.kv.allocator.free(answer if name == "alloc" and answer else [])
        check_lends(rig, (name, arguments.keys()))
    for known in list(serving._live):
        serving.finished(known)


def test_wrong_values_of_the_serving_lane_are_counted(rig: Rig) -> None:
    serving = rig.serving
    serving.arrived("live", prompt_tokens=1)
    bad: list[Callable[[], object]] = [
        lambda: serving.arrived([], prompt_tokens=1),  # type: ignore[arg-type]
        lambda: serving.arrived("x", prompt_tokens=1, prefilled="x"),  # type: ignore[arg-type]
        lambda: serving.emitted({}),  # type: ignore[arg-type]
        lambda: serving.emitted_all(None),  # type: ignore[arg-type]
        lambda: serving.emitted_all(_failing_ids()),
        lambda: serving.finished(set()),  # type: ignore[arg-type]
        lambda: serving.step("x").__enter__().__exit__(None, None, None),  # type: ignore[arg-type]
        lambda: serving.warm_up(None),  # type: ignore[arg-type]
        *(lambda ids=ids: step_of(serving, ids) for ids in (None, 5, [[1]])),  # type: ignore[misc]
    ]
    for at, call in enumerate(bad):
        before = serving.bad_calls
        call()
        assert serving.bad_calls > before, at
        check_lends(rig, at)
    serving.finished("live")


def step_of(serving: ServingLane, requests: Any) -> None:
    with serving.step(StepBatch(1, 1, 0, requests=requests)):
        pass


def test_a_step_takes_no_wrong_batch(rig: Rig) -> None:
    for value in wrong_values():
        with rig.serving.step() as step:
            step.commit(value)
        with rig.serving.step() as step:
            step.batch = value
        check_lends(rig, type(value))


def test_rollout_lane_raises_errors_of_rose_only(rig: Rig) -> None:
    for name, arguments in every_call(rig.rollout):
        try:
            answer = getattr(rig.rollout, name)(**arguments)
        except (RoseError, EngineError):
            answer = None
        if isinstance(answer, Quantum):
            with answer:
                pass
        check_lends(rig, (name, arguments.keys()))


def test_rollout_lane_says_which_value_is_wrong(rig: Rig) -> None:
    lane: Any = rig.rollout
    for call, says in (
        (lambda: lane.try_step(timeout_ms=-1), "timeout_ms must be at least 0, got -1"),
        (lambda: lane.try_step(timeout_ms=math.nan), "got nan"),
        (lambda: lane.reserve("8"), r"tokens must be an integer from 0 to 10\^9, got a value of"),
        (lambda: lane.grow(1 << 70), "blocks must be .*, got a value of type int"),
        (lambda: lane.pin(["x"]), "blocks must be ids of blocks"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            call()


def test_objects_of_rose_raise_errors_of_rose_only(rig: Rig) -> None:
    serving, borrower = Serving(lambda: rig.serving), Borrower(rig.rollout)
    request, sequence = serving.request(prompt_tokens=8), borrower.sequence()
    for owner in (serving, borrower, request, sequence):
        for name, arguments in every_call(owner):
            try:
                answer = getattr(owner, name)(**arguments)
                if name == "steps":
                    next(answer, None)
            except (RoseError, EngineError):
                pass
            check_lends(rig, (name, arguments.keys()))
    request.close()
    for known in list(rig.serving._live):
        rig.serving.finished(known)


def test_steps_of_rose_take_no_values() -> None:
    """So there is nothing to check; a parameter that is added must be."""
    for owner in (BorrowerStep, ApiServingStep):
        for name in public(owner):
            assert list(inspect.signature(getattr(owner, name)).parameters) == ["self"]
