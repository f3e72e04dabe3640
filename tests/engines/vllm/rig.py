"""vLLM's real scheduler on the CPU: with rose's pool, and as it comes out of the wheel."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self

from bench.vllm_wheel import importable, load
from rose.executor import SLO, CoServing, KVGeometry, Policy
from tests.known_model import confirm

BLOCK_TOKENS = 16
MODEL_TOKENS = 2048
# Two layers, two KV heads of 16 in float32: 8 KiB a block.
GEOMETRY = KVGeometry(layers=2, block_tokens=BLOCK_TOKENS, bytes_per_token=2 * 2 * 2 * 16 * 4)
BLOCKS_PER_SLAB = 4
SLAB_BYTES = BLOCKS_PER_SLAB * GEOMETRY.block_bytes
TOKEN = 7  # what every step samples
REQUEST_TOKENS = 1024  # serving's longest prompt
STEPS_MAX = 5000
_TENANTS = 2
_CONFIG = {
    "architectures": ["RoseTestModel"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": MODEL_TOKENS,
    "torch_dtype": "float32",
}


class Model(torch.nn.Module):
    """What vLLM's configuration asks of a model that is registered from outside; it never runs."""

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def embed_input_ids(self, input_ids: Any) -> None: ...

    def forward(self, input_ids: Any, positions: Any) -> None: ...

    def compute_logits(self, hidden_states: Any) -> None: ...


class Parts:
    """Makes what vLLM's schedulers and requests are made of, from vLLM's own classes."""

    def __init__(self, folder: Path) -> None:
        self.scheduler = load("vllm.v1.core.sched.scheduler").Scheduler
        self._config = load("vllm.config")
        self._interface = load("vllm.v1.kv_cache_interface")
        self._grammars = load("vllm.v1.structured_output").StructuredOutputManager
        self._request = load("vllm.v1.request").Request
        self._sampling = load("vllm.sampling_params").SamplingParams
        self._outputs = load("vllm.v1.outputs").ModelRunnerOutput
        utils = load("vllm.v1.core.kv_cache_utils")
        hash_ = load("vllm.utils.hashing").sha256
        utils.init_none_hash(hash_)
        # What came out, by request; its own test resets it.
        self.tokens_of: Counter[str] = Counter()
        self._hasher = utils.get_request_block_hasher(BLOCK_TOKENS, hash_)
        load("vllm.model_executor.models").ModelRegistry.register_model("RoseTestModel", Model)
        (folder / "config.json").write_text(json.dumps(_CONFIG))
        with importable():
            self._model = self._config.ModelConfig(
                model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0
            )

    def of_scheduler(
        self,
        *,
        blocks: int,
        policy: str = "fcfs",
        sequences: int = 512,
        step_tokens: int = 8192,
        watermark: float = 0.0,
    ) -> dict[str, Any]:
        """Return what `Scheduler` takes.

        Args:
            blocks: that vLLM is told of, the null block included.
            policy: of vLLM.
            sequences: that may run at once.
            step_tokens: of one step.
            watermark: share of the blocks that an admission leaves free.
        """
        with importable():
            cache = self._config.CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True)
            cache.num_gpu_blocks = blocks
            config = self._config.VllmConfig(
                model_config=self._model,
                cache_config=cache,
                scheduler_config=self._config.SchedulerConfig(
                    max_num_seqs=sequences,
                    max_num_batched_tokens=step_tokens,
                    max_model_len=MODEL_TOKENS,
                    is_encoder_decoder=False,
                    policy=policy,
                    async_scheduling=False,
                    watermark=watermark,
                ),
                device_config=self._config.DeviceConfig(device="cpu"),
            )
        spec = self._interface.FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=16, dtype=torch.float32
        )
        group = self._interface.KVCacheGroupSpec(["layer"], spec)
        return {
            "vllm_config": config,
            "kv_cache_config": self._interface.KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
            ),
            "structured_output_manager": self._grammars(config),
            "block_size": BLOCK_TOKENS,
            "log_stats": True,
        }

    def request(
        self, name: str, prompt: list[int], *, tokens: int, priority: int = 0, arrival: float = 0.0
    ) -> Any:
        """Return a request for `tokens` tokens after `prompt`."""
        return self._request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=self._sampling(max_tokens=tokens, ignore_eos=True),
            pooling_params=None,
            priority=priority,
            arrival_time=arrival,
            block_hasher=self._hasher,
        )

    def run(self, scheduler: Any, plan: Any) -> None:
        """Run a step that was planned: each request whose prompt is through gets one token."""
        names = list(plan.num_scheduled_tokens)
        sampled = [[TOKEN] if _samples(scheduler.requests.get(name)) else [] for name in names]
        output = self._outputs(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        for outputs in scheduler.update_from_output(plan, output).values():
            for one in outputs.outputs:
                self.tokens_of[one.request_id] += len(one.new_token_ids)

    def step(self, scheduler: Any) -> Any:
        """Plan and run a step; returns the plan."""
        plan = scheduler.schedule()
        self.run(scheduler, plan)
        return plan


def _samples(request: Any) -> bool:
    """Whether the step that was planned for a request reaches the end of what is known of it."""
    if request is None:  # aborted since
        return False
    if request.num_stale_output_tokens > 0:  # preempted since: it is not known any more
        return request.num_output_tokens > 0
    return request.num_computed_tokens >= request.num_tokens


def open_device(log_path: Path, *, slabs: int, **knobs: Any) -> CoServing:
    """Open a CPU device whose slabs hold a few blocks."""
    return CoServing.open(
        "cpu",
        pool_bytes=(slabs + _TENANTS) * SLAB_BYTES,
        slab_bytes=SLAB_BYTES,
        log_path=log_path,
        # A slow engine takes little within a deadline, so much can be lent.
        policy=Policy(latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0), **knobs),
    )


class Pair:
    """Serving and a borrower on one device, each with a real scheduler; left, the books balance."""

    def __init__(
        self,
        parts: Parts,
        log_path: Path,
        *,
        slabs: int,
        reserve_slabs: int = 8,
        request_tokens: int = REQUEST_TOKENS,
        revoke_ms: float = 2000.0,
        arrival_memory_ms: float = 60_000.0,
        **options: Any,
    ) -> None:
        from rose.engines.vllm.rollout_scheduler import RolloutScheduler
        from rose.engines.vllm.serving_scheduler import ServingScheduler

        self.parts = parts
        self.device = open_device(
            log_path,
            slabs=slabs,
            revoke_ms=revoke_ms,
            regrow_after_ms=0.0,
            arrival_memory_ms=arrival_memory_ms,
        )
        options = {"blocks": slabs * BLOCKS_PER_SLAB + 1, **options}
        with ExitStack() as undo:
            undo.callback(self.device.close)
            lane = self.device.serving(
                GEOMETRY,
                slo=SLO(ttft_ms=20_000, tpot_ms=1000),
                reserve_bytes=reserve_slabs * SLAB_BYTES,
                step_tokens=request_tokens,
                request_tokens=request_tokens,
            )
            confirm(self.device._parts.model, request_tokens)
            rollout = self.device.rollout(GEOMETRY, limit_bytes=slabs * SLAB_BYTES)
            self.serving = ServingScheduler(lane, **parts.of_scheduler(**options))
            self.borrower = RolloutScheduler(rollout, **parts.of_scheduler(**options))
            undo.pop_all()
        self.tokens_of = parts.tokens_of
        self.tokens_of.clear()

    def finish(self) -> None:
        """Step both until every request is over, serving first."""
        for scheduler in (self.serving, self.borrower):
            for _ in range(STEPS_MAX):
                if not scheduler.has_unfinished_requests():
                    break
                self.parts.step(scheduler)
            assert not scheduler.has_unfinished_requests()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_failure: object) -> None:
        self.device.close()
        if kind is not None:
            return
        assert self.device.gave_back is None
        self.device.arbiter.check_invariants()
        for scheduler in (self.serving, self.borrower):
            assert scheduler.kv_cache_manager.block_pool.get_usage() == 0
            assert scheduler.reset_prefix_cache()
        assert all(part.used_blocks == 0 for part in self.device.arbiter.snapshot().partitions)
