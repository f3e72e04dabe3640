"""`rose plan` as JSON: bytes and counts, each on one device."""

from typing import Any, Final

from rose.cli.plan_numbers import Plan, Tenant

_FORMAT: Final = 1


def plan_record(made: Plan, sentences: list[str]) -> dict[str, Any]:
    """Return what `--json` writes; keys are only ever added while the format is the same."""
    load = made.setting.load
    balances = [made.balance(group, running=load.requests) for group in made.serving.groups]
    reserve = made.reserve_slabs(running=load.requests)
    requests = made.serving_requests()
    return {
        "format": _FORMAT,
        "fits": made.fits,
        "device_bytes": made.setting.device_bytes,
        "least_device_bytes": made.least_device_bytes,
        "tp": made.setting.tp,
        "activation_bytes": 2 * made.setting.activation_bytes,
        "serving": _tenant_record(made, made.serving),
        "rollout": _tenant_record(made, made.rollout),
        "pool_bytes": made.pool_bytes,
        "slab_bytes": made.slab_bytes,
        "slabs": made.slabs,
        "header_slabs": made.header_slabs,
        "quantum_bytes": made.quantum_slabs * made.slab_bytes,
        "reserve_bytes": reserve * made.slab_bytes,
        "demand_blocks": [
            {
                "growth": one.growth_blocks,
                "request": one.request_blocks,
                "burst": one.burst_blocks,
                "all": one.demand_blocks,
            }
            for one in balances
        ],
        "serving_requests": requests,
        "serving_tokens": requests * load.request_tokens,
        "lendable": {
            when: {
                "bytes": slabs * made.slab_bytes,
                "rollouts": made.rollouts(slabs),
                "tokens": made.rollouts(slabs) * made.setting.rollout_tokens,
            }
            for when, slabs in (("idle", made.lendable_idle), ("busy", made.lendable_busy))
        },
        "advice": sentences,
    }


def _tenant_record(made: Plan, tenant: Tenant) -> dict[str, Any]:
    return {
        "model": tenant.shape.name,
        "parameters": tenant.parameters,
        "weight_bytes": tenant.weight_bytes,
        "kv": [
            {
                "attention": group.reach.value,
                "window_tokens": group.window_tokens,
                "layers": group.geometry.layers,
                "block_tokens": group.geometry.block_tokens,
                "bytes_per_token": group.geometry.bytes_per_token,
                "blocks_per_slab": group.geometry.blocks_per_slab(made.slab_bytes),
                "waste": group.geometry.waste(made.slab_bytes),
            }
            for group in tenant.groups
        ],
    }
