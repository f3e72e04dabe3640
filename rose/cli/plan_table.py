"""`rose plan` as rows for a reader: what, how much, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from rose.cli.plan_numbers import Plan, Tenant
from rose.memory import AttentionGroup
from rose.memory.geometry import PAGE_BYTES, WASTE_MAX, shard_heads
from rose.memory.model_weights import WeightDtype
from rose.units import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a plan.

    Args:
        what: it is.
        amount: with its unit.
        why: one sentence.
    """

    what: str
    amount: str
    why: str


def sections(plan: Plan) -> Iterator[list[Row]]:
    """Yield the rows in the order in which the numbers follow from each other."""
    yield list(_memory(plan))
    yield list(_slabs(plan))
    yield list(_loans(plan))


def size(size_bytes: int) -> str:
    """Return bytes in the unit that suits them."""
    if size_bytes == 0:
        return "0"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes / KIB:,.1f} KiB"


def _memory(plan: Plan) -> Iterator[Row]:
    setting = plan.setting
    yield Row("device", size(setting.device_bytes), "As given.")
    for role, tenant in (("serving", plan.serving), ("rollouts", plan.rollout)):
        yield Row(f"weights, {role}", size(tenant.weight_bytes), _weights(plan, tenant))
    yield Row(
        "activations",
        size(2 * setting.activation_bytes),
        f"Two engines with {size(setting.activation_bytes)} each, as given, for activations, "
        f"graphs and the driver.",
    )
    yield Row("pool", size(max(0, plan.pool_bytes)), "What is left; all KV of both lies in it.")


def _weights(plan: Plan, tenant: Tenant) -> str:
    shard = f", this device's share of {plan.setting.tp}" if plan.setting.tp > 1 else ""
    return f"{tenant.shape.name}: {tenant.parameters:,} parameters{shard}, {_stored(plan, tenant)}."


def _stored(plan: Plan, tenant: Tenant) -> str:
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


def _slabs(plan: Plan) -> Iterator[Row]:
    yield Row(
        "slab",
        size(plan.slab_bytes),
        f"The smallest multiple of {size(PAGE_BYTES)} that wastes at most {WASTE_MAX:.2%} in every "
        f"attention group of both models.",
    )
    yield Row(
        "slabs",
        f"{plan.slabs:,}",
        f"Of the pool's; {plan.header_slabs} more hold the null blocks of each attention group.",
    )
    for role, tenant in (("serving", plan.serving), ("rollouts", plan.rollout)):
        for group in tenant.groups:
            yield Row(
                f"KV, {role}, {group}",
                f"{size(group.geometry.bytes_per_token)}/token",
                f"{_kept(plan, tenant, group)}; {_blocks(plan, group)}.",
            )


def _kept(plan: Plan, tenant: Tenant, group: AttentionGroup) -> str:
    layers, latent = f"{group.geometry.layers} layers keep", tenant.shape.latent
    if latent is not None:
        return f"{layers} one latent of {latent.kv_rank} + {latent.rope_dim}, whole on each device"
    heads = shard_heads(tenant.shape.kv_heads, plan.setting.tp)
    return f"{layers} K and V of {heads} heads of {tenant.shape.head_dim}"


def _blocks(plan: Plan, group: AttentionGroup) -> str:
    geometry = group.geometry
    held = group.blocks_for(plan.setting.load.request_tokens)
    window = "" if group.window_tokens is None else f", of which a request holds {held} at most"
    return (
        f"a slab has {geometry.blocks_per_slab(plan.slab_bytes)} blocks of {geometry.block_tokens} "
        f"tokens{window}, and {geometry.waste(plan.slab_bytes):.1%} waste"
    )


def _loans(plan: Plan) -> Iterator[Row]:
    load, busy = plan.setting.load, f"{plan.setting.load.requests:,} requests"
    slabs_of = "a slab" if plan.quantum_slabs == 1 else f"{plan.quantum_slabs} slabs, one"
    yield Row(
        "quantum of a loan",
        size(plan.quantum_slabs * plan.slab_bytes),
        f"The least that is lent: {slabs_of} for each attention group of the rollouts.",
    )
    reserve = plan.reserve_slabs(running=load.requests)
    yield Row(
        "reserve",
        size(reserve * plan.slab_bytes),
        f"{_share(reserve, plan.slabs)} of the slabs, for D({load.revoke_ms:g} ms) while "
        f"{busy} run: " + "; ".join(_demand(plan, group) for group in plan.serving.groups) + ".",
    )
    capacity = plan.serving_requests()
    yield Row(
        "serving KV, nothing lent",
        f"{capacity * load.request_tokens:,} tokens",
        f"{capacity:,} requests of {load.request_tokens:,} tokens fill all slabs.",
    )
    yield _lendable(plan, "serving idle", plan.lendable_idle, "All slabs but D(T) of no requests")
    held = f"What {busy} of full length ({plan.held_slabs:,} slabs) and the reserve leave"
    yield _lendable(plan, "serving busy", plan.lendable_busy, held)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "more than all"


def _demand(plan: Plan, group: AttentionGroup) -> str:
    terms = plan.balance(group, running=plan.setting.load.requests)
    whose = "" if len(plan.serving.groups) == 1 else f" ({group})"
    return (
        f"{terms.growth_blocks:,} blocks of growth + {terms.request_blocks:,} of the largest next "
        f"prompts + {terms.burst_blocks:,} of a burst{whose}"
    )


def _lendable(plan: Plan, when: str, slabs: int, why: str) -> Row:
    rollouts, tokens = plan.rollouts(slabs), plan.setting.rollout_tokens
    return Row(
        f"can be lent, {when}",
        size(slabs * plan.slab_bytes),
        f"{why}: {slabs:,} slabs, room for {rollouts:,} rollouts of {tokens:,} tokens "
        f"({rollouts * tokens:,} tokens).",
    )
