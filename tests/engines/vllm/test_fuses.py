"""Scheduler and worker of rose run together or not at all; none of this needs vLLM."""

from types import SimpleNamespace

import pytest

from rose.engines.vllm.join import join, joined
from rose.engines.vllm.settings import read_settings
from rose.errors import Unavailable


class Ours: ...


class Other: ...


class Side: ...


def config(scheduler: type) -> SimpleNamespace:
    """Return a `VllmConfig` as far as it is looked at."""
    return SimpleNamespace(scheduler_config=SimpleNamespace(get_scheduler_cls=lambda: scheduler))


def test_the_scheduler_gets_what_the_worker_left() -> None:
    one, side = config(Ours), Side()
    join(one, side, scheduler=Ours)
    assert joined(one, Side) is side


def test_a_worker_without_its_scheduler_is_refused() -> None:
    with pytest.raises(Unavailable, match="needs rose's scheduler Ours, got Other"):
        join(config(Other), Side(), scheduler=Ours)


def test_a_scheduler_without_its_worker_is_refused() -> None:
    one = config(Ours)
    with pytest.raises(Unavailable, match="needs rose's worker"):
        joined(one, Side)
    join(one, Other(), scheduler=Ours)  # the worker of the other role
    with pytest.raises(Unavailable, match="needs rose's worker"):
        joined(one, Side)


@pytest.mark.parametrize("additional", [None, {}, {"rose": 1}, "rose"])
def test_classes_named_without_the_command_are_refused(additional: object) -> None:
    with pytest.raises(Unavailable, match="`rose vllm serve` or `rose vllm rollout`"):
        read_settings(additional)
