"""What two models need of a device, and what is left to lend: the arithmetic of `rose plan`."""

from dataclasses import dataclass, replace
from typing import Final

from rose._core import AdmissionBalance, AdmissionTerms, admission_balance
from rose.errors import InvalidArgument
from rose.memory import AttentionGroup, choose_slab_bytes
from rose.memory.attention import requests_within, slabs_for
from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.model_weights import WeightDtype, parameters, weight_bytes
from rose.units import ceil_div

BLOCK_TOKENS_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Load:
    """What serving may be asked for.

    Args:
        requests: that run at once.
        request_tokens: the most that one of them holds, prompt and answer.
        step_tokens: the most that one step prefills.
        burst_requests: that may arrive within T besides the largest one.
        prefill_tokens_per_s: of the engine, at most.
        decode_tokens_per_s: of one request, at most.
        revoke_ms: T, the longest a revocation may take.
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
    """What is planned for; devices of a tensor parallel group are alike, and so are their plans.

    Args:
        serving: the model that answers users.
        rollout: the model that rollouts run on.
        device_bytes: memory of one device.
        tp: devices that share each model.
        block_tokens: of both models.
        kv: how both keep KV.
        weights: how both keep weights; None for as they were published.
        activation_bytes: of each engine, beside weights and KV.
        load: of serving.
        rollout_tokens: the most that one rollout holds.
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
        shape: of the model.
        parameters: of all of it.
        weight_bytes: on this device.
        groups: its attention groups, as this device keeps them.
    """

    shape: ModelShape
    parameters: int
    weight_bytes: int
    groups: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """How the memory of a device is divided; every number follows from the fields.

    Args:
        setting: what was asked.
        serving: on the device.
        rollout: on the device.
        slab_bytes: that suits all attention groups of both.
    """

    setting: Setting
    serving: PlannedModel
    rollout: PlannedModel
    slab_bytes: int

    @property
    def pool_bytes(self) -> int:
        """Return what weights and activations leave; negative when they do not fit."""
        weights = self.serving.weight_bytes + self.rollout.weight_bytes
        return self.setting.device_bytes - weights - 2 * self.setting.activation_bytes

    @property
    def header_slabs(self) -> int:
        """Return the slabs that are never lent: null blocks of each attention group."""
        return len(self.serving.groups) + len(self.rollout.groups)

    @property
    def slabs(self) -> int:
        """Return the slabs that can have an owner."""
        return max(0, self.pool_bytes // self.slab_bytes - self.header_slabs)

    @property
    def quantum_slabs(self) -> int:
        """Return the least that lets rollouts grow by a token: a slab for each of their groups."""
        return len(self.rollout.groups)

    @property
    def held_slabs(self) -> int:
        """Return what serving holds when all its requests have their full length."""
        load = self.setting.load
        return slabs_for(
            self.serving.groups,
            requests=load.requests,
            tokens=load.request_tokens,
            slab_bytes=self.slab_bytes,
        )

    def balance(self, group: AttentionGroup, *, running: int) -> AdmissionBalance:
        """Return D(T) of one of serving's groups, by the formula that decides about loans."""
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
        """Return the slabs that no loan may touch while so many requests run: D(T), whole slabs."""
        return sum(
            ceil_div(
                self.balance(group, running=running).demand_blocks,
                group.geometry.blocks_per_slab(self.slab_bytes),
            )
            for group in self.serving.groups
        )

    @property
    def lendable_idle(self) -> int:
        """Return the slabs that can be lent while serving runs nothing."""
        return max(0, self.slabs - self.reserve_slabs(running=0))

    @property
    def lendable_busy(self) -> int:
        """Return the slabs that can be lent while all its requests have their full length."""
        reserve = self.reserve_slabs(running=self.setting.load.requests)
        return max(0, self.slabs - self.held_slabs - reserve)

    @property
    def fits(self) -> bool:
        """Return whether serving has its reserve and an idle device has something to lend."""
        return self.lendable_idle >= self.quantum_slabs

    @property
    def least_device_bytes(self) -> int:
        """Return the memory of the smallest device on which the plan fits."""
        slabs = self.header_slabs + self.reserve_slabs(running=0) + self.quantum_slabs
        return self.setting.device_bytes - self.pool_bytes + slabs * self.slab_bytes

    def serving_requests(self) -> int:
        """Return how many requests of full length serving can run while nothing is lent."""
        return self._requests(self.serving, self.slabs, self.setting.load.request_tokens)

    def rollouts(self, slabs: int) -> int:
        """Return how many rollouts of full length so many slabs hold."""
        return self._requests(self.rollout, slabs, self.setting.rollout_tokens)

    def _requests(self, tenant: PlannedModel, slabs: int, tokens: int) -> int:
        return requests_within(
            tenant.groups, slabs=slabs, tokens=tokens, slab_bytes=self.slab_bytes
        )


def make_plan(setting: Setting) -> DevicePlan:
    """Divide a device; what does not fit is an answer, `DevicePlan.fits`.

    Raises:
        InvalidArgument: a model cannot be divided so, or no slab size suits both.
    """
    serving, rollout = _tenant(setting.serving, setting), _tenant(setting.rollout, setting)
    groups = (*serving.groups, *rollout.groups)
    try:
        slab_bytes = choose_slab_bytes(*(group.geometry for group in groups))
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}{_smaller_blocks(setting)}") from None
    return DevicePlan(setting, serving, rollout, slab_bytes)


def _smaller_blocks(setting: Setting) -> str:
    """Say with which smaller blocks there is a slab size, if there is one."""
    smaller = setting.block_tokens // 2
    if smaller < BLOCK_TOKENS_MIN:
        return ""
    try:
        make_plan(replace(setting, block_tokens=smaller))
    except InvalidArgument:
        return _smaller_blocks(replace(setting, block_tokens=smaller))
    return f"; {smaller} would do"


def _tenant(shape: ModelShape, setting: Setting) -> PlannedModel:
    return PlannedModel(
        shape=shape,
        parameters=parameters(shape),
        weight_bytes=weight_bytes(shape, dtype=setting.weights, tp=setting.tp),
        groups=shape.groups(block_tokens=setting.block_tokens, kv=setting.kv, tp=setting.tp),
    )
