"""The arithmetic of `rose plan`: memory of two models on a device, and the lendable rest."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rose._core import AdmissionBalance, AdmissionTerms, admission_balance
from rose.errors import InvalidArgument
from rose.memory import AttentionGroup, choose_slab_bytes
from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.model_weights import WeightDtype, parameters, weight_bytes
from rose.units import ceil_div

BLOCK_TOKENS_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Load:
    """Serving's maximum load.

    Args:
        requests: concurrent requests.
        request_tokens: maximum tokens per request, prompt and answer.
        step_tokens: maximum prefill tokens per step.
        burst_requests: requests that may arrive within T besides the largest one.
        prefill_tokens_per_s: maximum prefill rate of the engine.
        decode_tokens_per_s: maximum decode rate of one request.
        revoke_ms: T, the time limit of a revocation.
    """

    requests: int
    request_tokens: int
    step_tokens: int
    burst_requests: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    revoke_ms: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Inputs of a plan. A plan holds for every device of a tensor-parallel group.

    Args:
        serving: serving's model.
        rollout: the rollouts' model.
        device_bytes: memory of one device.
        tp: devices per model.
        block_tokens: tokens per KV block of both models.
        kv: KV dtype of both models.
        weights: weight dtype of both models; None for the dtype in which each was published.
        activation_bytes: memory of each engine besides weights and KV.
        load: serving's maximum load.
        rollout_tokens: maximum tokens of one rollout.
    """

    serving: ModelShape
    rollout: ModelShape
    device_bytes: int
    tp: int
    block_tokens: int
    kv: KVDtype
    weights: WeightDtype | None
    activation_bytes: int
    load: Load
    rollout_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One model on one device.

    Args:
        shape: shape of the model.
        parameters: parameter count of the whole model.
        weight_bytes: size of this device's weights.
        groups: this device's part of the attention groups.
    """

    shape: ModelShape
    parameters: int
    weight_bytes: int
    groups: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Division of a device's memory; every number follows from the fields.

    Args:
        setting: inputs of the plan.
        serving: serving's model on the device.
        rollout: the rollouts' model on the device.
        slab_bytes: slab size for all attention groups of both models.
    """

    setting: Setting
    serving: PlannedModel
    rollout: PlannedModel
    slab_bytes: int

    @property
    def pool_bytes(self) -> int:
        """Memory left by weights and activations; negative if they do not fit."""
        weights = self.serving.weight_bytes + self.rollout.weight_bytes
        return self.setting.device_bytes - weights - 2 * self.setting.activation_bytes

    @property
    def header_slabs(self) -> int:
        """Slabs that are never lent, because they hold each attention group's null blocks."""
        return len(self.serving.groups) + len(self.rollout.groups)

    @property
    def slabs(self) -> int:
        """Slabs that can have an owner."""
        return max(0, self.pool_bytes // self.slab_bytes - self.header_slabs)

    @property
    def quantum_slabs(self) -> int:
        """Minimum loan that lets rollouts grow by a token: a slab for each attention group."""
        return len(self.rollout.groups)

    @property
    def held_slabs(self) -> int:
        """Slabs that serving holds when all its requests have their full length."""
        load = self.setting.load
        return slabs_for(
            self.serving.groups,
            requests=load.requests,
            tokens=load.request_tokens,
            slab_bytes=self.slab_bytes,
        )

    def balance(self, group: AttentionGroup, *, running: int) -> AdmissionBalance:
        """Return D(T) of one of serving's attention groups, by the formula that admits loans."""
        load, block_tokens = self.setting.load, group.geometry.block_tokens
        blocks = group.blocks_for(load.request_tokens, step_tokens=load.step_tokens)
        largest = min(load.request_tokens, blocks * block_tokens)
        return admission_balance(
            AdmissionTerms(
                epoch=0,
                to_partition=0,
                slabs=0,
                blocks_per_slab=group.geometry.blocks_per_slab(self.slab_bytes),
                block_tokens=block_tokens,
                free_serving_blocks=0,
                unowned_slabs=0,
                revocable_blocks=0,
                horizon_ms=load.revoke_ms,
                running_requests=running,
                decode_tokens_per_s=load.decode_tokens_per_s,
                prefill_tokens_per_s=load.prefill_tokens_per_s,
                max_request_tokens=largest,
                max_batch_tokens=load.step_tokens,
                burst_requests=load.burst_requests,
                burst_request_tokens=largest,
            )
        )

    def reserve_slabs(self, *, running: int) -> int:
        """Return the slabs that are never lent while `running` requests run: D(T), rounded up."""
        return sum(
            ceil_div(
                self.balance(group, running=running).demand_blocks,
                group.geometry.blocks_per_slab(self.slab_bytes),
            )
            for group in self.serving.groups
        )

    @property
    def lendable_idle(self) -> int:
        """Lendable slabs while serving is idle."""
        return max(0, self.slabs - self.reserve_slabs(running=0))

    @property
    def lendable_busy(self) -> int:
        """Lendable slabs while all of serving's requests have their full length."""
        reserve = self.reserve_slabs(running=self.setting.load.requests)
        return max(0, self.slabs - self.held_slabs - reserve)

    @property
    def fits(self) -> bool:
        """True if an idle device can lend a quantum besides serving's reserve."""
        return self.lendable_idle >= self.quantum_slabs

    @property
    def least_device_bytes(self) -> int:
        """Memory of the smallest device on which the plan fits."""
        slabs = self.header_slabs + self.reserve_slabs(running=0) + self.quantum_slabs
        return self.setting.device_bytes - self.pool_bytes + slabs * self.slab_bytes

    def serving_requests(self) -> int:
        """Return how many full-length requests serving can run while nothing is lent."""
        return self._requests(self.serving, self.slabs, self.setting.load.request_tokens)

    def rollouts(self, slabs: int) -> int:
        """Return how many full-length rollouts fit into `slabs`."""
        return self._requests(self.rollout, slabs, self.setting.rollout_tokens)

    def _requests(self, tenant: PlannedModel, slabs: int, tokens: int) -> int:
        return requests_within(
            tenant.groups, slabs=slabs, tokens=tokens, slab_bytes=self.slab_bytes
        )


def make_plan(setting: Setting) -> DevicePlan:
    """Divide a device's memory; `DevicePlan.fits` tells whether the models fit.

    Raises:
        InvalidArgument: a model cannot be divided by `tp`, or no slab size suits both.
    """
    serving, rollout = _tenant(setting.serving, setting), _tenant(setting.rollout, setting)
    groups = (*serving.groups, *rollout.groups)
    try:
        slab_bytes = choose_slab_bytes(*(group.geometry for group in groups))
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}{_smaller_blocks(setting)}") from None
    return DevicePlan(setting, serving, rollout, slab_bytes)


def _smaller_blocks(setting: Setting) -> str:
    """Return advice to use the largest smaller block size that works; "" if there is none."""
    smaller = setting.block_tokens // 2
    if smaller < BLOCK_TOKENS_MIN:
        return ""
    try:
        make_plan(replace(setting, block_tokens=smaller))
    except InvalidArgument:
        return _smaller_blocks(replace(setting, block_tokens=smaller))
    return f"; --block-tokens {smaller} would work"


def _tenant(shape: ModelShape, setting: Setting) -> PlannedModel:
    return PlannedModel(
        shape=shape,
        parameters=parameters(shape),
        weight_bytes=weight_bytes(shape, dtype=setting.weights, tp=setting.tp),
        groups=shape.groups(block_tokens=setting.block_tokens, kv=setting.kv, tp=setting.tp),
    )


def slabs_for(
    groups: Sequence[AttentionGroup], *, requests: int, tokens: int, slab_bytes: int
) -> int:
    """Return the number of slabs for `requests` decoding requests of `tokens` tokens each."""
    return sum(
        ceil_div(requests * group.blocks_for(tokens), group.geometry.blocks_per_slab(slab_bytes))
        for group in groups
    )


def requests_within(
    groups: Sequence[AttentionGroup], *, slabs: int, tokens: int, slab_bytes: int
) -> int:
    """Return how many decoding requests of `tokens` tokens (>= 1) fit in `slabs` slabs."""
    at_most = min(
        slabs * group.geometry.blocks_per_slab(slab_bytes) // group.blocks_for(tokens)
        for group in groups
    )
    return (
        bisect_right(
            range(at_most + 1),
            slabs,
            key=lambda requests: slabs_for(
                groups, requests=requests, tokens=tokens, slab_bytes=slab_bytes
            ),
        )
        - 1
    )
