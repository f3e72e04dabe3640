"""What would make a plan fit, and what its reader should know besides."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rose.cli.plan_numbers import Plan, Setting, make_plan
from rose.errors import InvalidArgument
from rose.memory.model_weights import WeightDtype
from rose.units import GIB, ceil_div

_TP_MAX: Final = 64


def advice(plan: Plan) -> list[str]:
    """Return sentences: why it does not fit and what would, or what is tight."""
    sentences = list(_notes(plan))
    if not plan.fits:
        sentences.append(f"It does not fit: {_shortage(plan)}.")
        sentences.extend(f"It would fit {what}." for what in _what_would(plan))
    elif plan.lendable_busy < plan.quantum_slabs:
        sentences.append(
            "Nothing can be lent while serving is as busy as that; rollouts run in its idle times."
        )
    if plan.fits and plan.serving_requests() < plan.setting.load.requests:
        sentences.append(
            f"Serving has room for {plan.serving_requests():,} of the "
            f"{plan.setting.load.requests:,} requests at their full length, even with nothing lent."
        )
    return sentences


def _notes(plan: Plan) -> Iterator[str]:
    for tenant in {
        plan.serving.shape.name: plan.serving,
        plan.rollout.shape.name: plan.rollout,
    }.values():
        if tenant.shape.is_part:
            yield (
                f"{tenant.shape.name} is more than a text model: only its text part is counted, so "
                f"add the rest to --activation-gb."
            )


def _shortage(plan: Plan) -> str:
    if plan.pool_bytes <= 0:
        return f"weights and activations exceed the device by {-plan.pool_bytes / GIB:.1f} GiB"
    missing = plan.least_device_bytes - plan.setting.device_bytes
    return f"{missing / GIB:.1f} GiB are missing for null blocks, serving's reserve and one quantum"


def _what_would(plan: Plan) -> Iterator[str]:
    setting = plan.setting
    yield f"on a device of {ceil_div(plan.least_device_bytes, GIB)} GiB"
    tp = setting.tp * 2
    while tp <= _TP_MAX:
        if _fits(replace(setting, tp=tp)):
            yield f"on these devices with --tp {tp}"
            break
        tp *= 2
    if _fits(replace(setting, weights=WeightDtype.FP8)):
        yield "on this device with --weights-dtype fp8"


def _fits(setting: Setting) -> bool:
    try:
        return make_plan(setting).fits
    except InvalidArgument:
        return False
