"""`rose plan SERVING ROLLOUT`: checks that two models fit a device, and sizes loans."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose.cli.ranges import FiniteRange
from rose.errors import InvalidArgument
from rose.memory import AttentionGroup
from rose.memory.geometry import PAGE_BYTES, WASTE_MAX, shard_heads
from rose.memory.model_shape import KVDtype
from rose.memory.model_weights import WeightDtype
from rose.memory.presets import find_model
from rose.units import GIB, ceil_div
from rose_lab.cli.plan_numbers import (
    BLOCK_TOKENS_MIN,
    DevicePlan,
    Load,
    PlannedModel,
    Setting,
    make_plan,
)
from rose_lab.numbers import size_text

_Row = tuple[str, str, str]  # what, how much, why
_EXIT_DOES_NOT_FIT: Final = 1

_FLOAT32_BYTES: Final = 4
_KV_DTYPES: Final = {
    "bf16": KVDtype(2),
    "fp8": KVDtype(1),
    "fp8-per-token-head": KVDtype(1, head_scale_bytes=_FLOAT32_BYTES),
}
# Limited so that products of tokens and requests fit the 32 bits of a certificate's terms.
_TOKENS: Final = click.IntRange(1, 1 << 22)
_BURST: Final = click.IntRange(0, 1000)
_REQUESTS: Final = click.IntRange(0, 1_000_000)
_RATE: Final = FiniteRange(0, 1e8)
_GIB: Final = FiniteRange(0, 1 << 20)


@click.command()
@click.argument("serving")
@click.argument("rollout")
@click.option(
    "--device-gb", type=_GIB, required=True, help="Memory of a device, in GiB of 2^30 bytes."
)
@click.option("--tp", type=click.IntRange(1, 1024), default=1, help="Devices per model.")
@click.option("--block-tokens", type=click.IntRange(BLOCK_TOKENS_MIN, 256), default=16)
@click.option(
    "--kv-dtype",
    type=click.Choice(list(_KV_DTYPES)),
    default="bf16",
    help="fp8-per-token-head adds a float32 scale to each head of K and V of each token.",
)
@click.option(
    "--weights-dtype",
    type=click.Choice([dtype.value for dtype in WeightDtype]),
    help="Default: as the model was published.",
)
@click.option("--activation-gb", type=_GIB, default=4.0, help="Activations of each engine, in GiB.")
@click.option("--requests", type=_REQUESTS, default=64, help="Concurrent requests of serving.")
@click.option("--request-tokens", type=_TOKENS, default=8192, help="Longest request.")
@click.option(
    "--rollout-tokens", type=_TOKENS, help="Longest rollout. Default: as --request-tokens."
)
@click.option(
    "--prefill-tokens-per-s", type=_RATE, default=50_000.0, help="Prefill rate of serving."
)
@click.option(
    "--decode-tokens-per-s", type=_RATE, default=100.0, help="Decode rate of one request."
)
@click.option("--step-tokens", type=_TOKENS, default=8192, help="Most prompt tokens of a step.")
@click.option("--burst-requests", type=_BURST, default=1, help="Requests that arrive together.")
@click.option(
    "--revoke-ms",
    type=FiniteRange(0, 1e6),
    default=50.0,
    help="T: longest time of a revocation.",
)
def plan(
    *,
    serving: str,
    rollout: str,
    device_gb: float,
    tp: int,
    block_tokens: int,
    kv_dtype: str,
    weights_dtype: str | None,
    activation_gb: float,
    rollout_tokens: int | None,
    **load: Any,
) -> int:
    """Compute how much of a device can be lent beside SERVING and ROLLOUT, and why.

    SERVING and ROLLOUT are names of models that rose knows (Qwen3-8B), or paths of a config.json or
    of its folder. The exit status is 1 when the models do not fit; the command then prints a device
    size that would suffice. The status is 2 when a model cannot be read.
    """
    setting = Setting(
        serving=find_model(serving),
        rollout=find_model(rollout),
        device_bytes=_bytes("--device-gb", device_gb),
        tp=tp,
        block_tokens=block_tokens,
        kv=_KV_DTYPES[kv_dtype],
        weights=WeightDtype(weights_dtype) if weights_dtype else None,
        activation_bytes=_bytes("--activation-gb", activation_gb),
        load=Load(**load),
        rollout_tokens=rollout_tokens or load["request_tokens"],
    )
    made = make_plan(setting)
    _print(Console(highlight=False), made, advice(made))
    return 0 if made.fits else _EXIT_DOES_NOT_FIT


def _bytes(option: str, gib: float) -> int:
    if not math.isfinite(gib):
        raise InvalidArgument(f"{option} must be a finite number of GiB, got {gib}")
    return int(gib * GIB)


def _print(console: Console, made: DevicePlan, sentences: list[str]) -> None:
    title = f"{made.serving.shape.name} serves, {made.rollout.shape.name} rolls out"
    table = Table("what", "how much", "why", title=Text(title))
    table.columns[1].justify = "right"
    for rows in _sections(made):
        for what, amount, why in rows:
            table.add_row(Text(what), Text(amount, no_wrap=True), Text(why))
        table.add_section()
    console.print(table)
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)


_TP_MAX: Final = 64


def advice(plan: DevicePlan) -> list[str]:
    """Return remarks: why the plan does not fit and what would help, or which limits it has."""
    sentences = list(_notes(plan))
    if not plan.fits:
        sentences.append(f"It does not fit: {_shortage(plan)}.")
        sentences.extend(f"It would fit {what}." for what in _what_would(plan))
    elif plan.lendable_busy < plan.quantum_slabs:
        sentences.append(
            "Nothing can be lent while serving is that busy; rollouts run when it is less busy."
        )
    if plan.fits and plan.serving_requests() < plan.setting.load.requests:
        sentences.append(
            f"Serving has room for {plan.serving_requests():,} of the "
            f"{plan.setting.load.requests:,} requests at their full length, even with nothing lent."
        )
    return sentences


def _notes(plan: DevicePlan) -> Iterator[str]:
    for tenant in {
        plan.serving.shape.name: plan.serving,
        plan.rollout.shape.name: plan.rollout,
    }.values():
        if tenant.shape.is_part:
            yield (
                f"{tenant.shape.name} is more than a text model: only its text part is counted, so "
                f"add the rest to --activation-gb."
            )


def _shortage(plan: DevicePlan) -> str:
    if plan.pool_bytes <= 0:
        return f"weights and activations exceed the device by {-plan.pool_bytes / GIB:.1f} GiB"
    missing = plan.least_device_bytes - plan.setting.device_bytes
    return f"{missing / GIB:.1f} GiB are missing for null blocks, serving's reserve and one quantum"


def _what_would(plan: DevicePlan) -> Iterator[str]:
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


def _sections(plan: DevicePlan) -> Iterator[list[_Row]]:
    """Yield the rows so that each number follows from earlier ones."""
    yield list(_memory(plan))
    yield list(_slabs(plan))
    yield list(_loans(plan))


def _memory(plan: DevicePlan) -> Iterator[_Row]:
    setting = plan.setting
    yield ("device", size_text(setting.device_bytes), "As given.")
    for role, tenant in (("serving", plan.serving), ("rollouts", plan.rollout)):
        yield (f"weights, {role}", size_text(tenant.weight_bytes), _weights(plan, tenant))
    yield (
        "activations",
        size_text(2 * setting.activation_bytes),
        (
            f"Two engines with {size_text(setting.activation_bytes)} each, as given, for "
            f"activations, graphs and the driver."
        ),
    )
    yield ("pool", size_text(max(0, plan.pool_bytes)), "The rest, for the KV of both models.")


def _weights(plan: DevicePlan, tenant: PlannedModel) -> str:
    shard = f", this device's share of {plan.setting.tp}" if plan.setting.tp > 1 else ""
    return f"{tenant.shape.name}: {tenant.parameters:,} parameters{shard}, {_stored(plan, tenant)}."


def _stored(plan: DevicePlan, tenant: PlannedModel) -> str:
    bits = 8 * tenant.shape.dtype_bytes
    match plan.setting.weights:
        case WeightDtype.BF16:
            return "in bf16 as asked"
        case WeightDtype.FP8:
            return f"matrices of layers in FP8 as asked, the rest in {bits} bits"
        case None if tenant.shape.is_fp8:
            return f"matrices of layers in FP8 as published, the rest in {bits} bits"
        case None:
            return f"{bits} bits each as published"


def _slabs(plan: DevicePlan) -> Iterator[_Row]:
    yield (
        "slab",
        size_text(plan.slab_bytes),
        (
            f"The smallest multiple of {size_text(PAGE_BYTES)} that wastes at most {WASTE_MAX:.2%} "
            f"in every attention group of both models."
        ),
    )
    yield (
        "slabs",
        f"{plan.slabs:,}",
        f"Slabs of the pool; {plan.header_slabs} more hold the attention groups' null blocks.",
    )
    for role, tenant in (("serving", plan.serving), ("rollouts", plan.rollout)):
        for group in tenant.groups:
            yield (
                f"KV, {role}, {group}",
                f"{size_text(group.geometry.bytes_per_token)}/token",
                f"{_kept(plan, tenant, group)}; {_blocks(plan, group)}.",
            )


def _kept(plan: DevicePlan, tenant: PlannedModel, group: AttentionGroup) -> str:
    layers, latent = f"{group.geometry.layers} layers keep", tenant.shape.latent
    if latent is not None:
        return f"{layers} one latent of {latent.kv_rank} + {latent.rope_dim}, whole on each device"
    heads = shard_heads(tenant.shape.kv_heads, plan.setting.tp)
    return f"{layers} K and V of {heads} heads of {tenant.shape.head_dim}"


def _blocks(plan: DevicePlan, group: AttentionGroup) -> str:
    geometry = group.geometry
    held = group.blocks_for(plan.setting.load.request_tokens)
    window = "" if group.window_tokens is None else f"; a request holds at most {held} blocks"
    return (
        f"a slab has {geometry.blocks_per_slab(plan.slab_bytes)} blocks of {geometry.block_tokens} "
        f"tokens and {geometry.waste(plan.slab_bytes):.1%} waste{window}"
    )


def _loans(plan: DevicePlan) -> Iterator[_Row]:
    load, busy = plan.setting.load, f"{plan.setting.load.requests:,} requests"
    slabs_of = "a slab" if plan.quantum_slabs == 1 else f"{plan.quantum_slabs} slabs, one"
    yield (
        "quantum of a loan",
        size_text(plan.quantum_slabs * plan.slab_bytes),
        f"The least that is lent: {slabs_of} for each attention group of the rollouts.",
    )
    reserve = plan.reserve_slabs(running=load.requests)
    yield (
        "reserve",
        size_text(reserve * plan.slab_bytes),
        f"{_share(reserve, plan.slabs)} of the slabs: the demand D({load.revoke_ms:g} ms) while "
        f"{busy} run: " + "; ".join(_demand(plan, group) for group in plan.serving.groups) + ".",
    )
    capacity = plan.serving_requests()
    yield (
        "serving KV, nothing lent",
        f"{capacity * load.request_tokens:,} tokens",
        f"{capacity:,} requests of {load.request_tokens:,} tokens fill all slabs.",
    )
    idle = "All slabs except the reserve for an idle engine"
    yield _lendable(plan, "serving idle", plan.lendable_idle, idle)
    held = f"The rest beside {busy} of full length ({plan.held_slabs:,} slabs) and the reserve"
    yield _lendable(plan, "serving busy", plan.lendable_busy, held)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "more than all"


def _demand(plan: DevicePlan, group: AttentionGroup) -> str:
    terms = plan.balance(group, running=plan.setting.load.requests)
    whose = "" if len(plan.serving.groups) == 1 else f" ({group})"
    return (
        f"{terms.growth_blocks:,} blocks of growth + {terms.request_blocks:,} of the largest next "
        f"prompts + {terms.burst_blocks:,} of a burst{whose}"
    )


def _lendable(plan: DevicePlan, when: str, slabs: int, why: str) -> _Row:
    rollouts, tokens = plan.rollouts(slabs), plan.setting.rollout_tokens
    return (
        f"can be lent, {when}",
        size_text(slabs * plan.slab_bytes),
        (
            f"{why}: {slabs:,} slabs, room for {rollouts:,} rollouts of {tokens:,} tokens "
            f"({rollouts * tokens:,} tokens)."
        ),
    )
