"""Build engines of transformers' continuous batching: stock, serving under rose, borrower."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache_allocators import SLIDING_ATTENTION
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.initialization import (
    update_cb_config_after_cache_creation,
)

from rose.clock import BootClock, Clock
from rose.engines.lane import KVLane
from rose.engines.torch import check_device, gate_layers
from rose.engines.transformers.cache import (
    SlabCache,
    VersionedCache,
    block_geometry,
)
from rose.engines.transformers.commits import IN_FLIGHT, InFlight, OnCommitted
from rose.engines.transformers.facts import ModelFacts
from rose.engines.transformers.guard import check_version
from rose.engines.transformers.outputs import CallbackRouter, LiveRequest, OnOutput
from rose.engines.transformers.probes import Prober
from rose.engines.transformers.processor import DeviceProcessor, ServingProcessor
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.engines.transformers.sampling import Sampling
from rose.engines.transformers.scheduler import PreemptingScheduler, UndoingScheduler
from rose.errors import InvalidArgument, Unavailable, check
from rose.executor import RolloutLane, ServingLane
from rose.memory import KVGeometry
from rose.transfer.receiving.commit import Commit
from rose.units import MIB

Model: TypeAlias = PreTrainedModel


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an engine.

    Args:
        page_tokens: tokens per page of the cache.
        max_batch_tokens: most tokens per step; bounds a prefill chunk and so a step's duration.
        max_requests_per_batch: most requests per step.
        spare_share: share of memory, from 0 to 1, that must be free for running requests before a
            new request is admitted. If it is too small, running requests take blocks from each
            other and are prefilled again.
        prefix_cache: whether to keep full blocks of finished requests for reuse.
        sampling: whether to sample by each request's `Sampling` and report logprobs; otherwise
            every token is the most likely one, without a logprob.
        version: version of the model's initial weights.
        inflight: handling of running requests when the weights change: "keep" their KV, "recompute"
            it under the new weights, or "abort" them with the output so far.
        move_bytes: most bytes of KV that a borrower copies between two steps, so that slabs become
            empty without stopping a request. The copy lengthens the quantum, and delays serving if
            serving waits for the quantum's end.
        cores: CPU cores that form the device; None: threads are not pinned.
        clock: time source.
    """

    page_tokens: int = 16
    max_batch_tokens: int = 256
    max_requests_per_batch: int = 64
    spare_share: float = 0.0
    prefix_cache: bool = False
    sampling: bool = False
    version: int = 0
    inflight: InFlight = "keep"
    move_bytes: int = 8 * MIB
    cores: frozenset[int] | None = None
    clock: Clock = field(default_factory=BootClock)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: `inflight` is unknown.
        """
        if self.inflight not in IN_FLIGHT:
            raise InvalidArgument(
                f"inflight must be one of {', '.join(IN_FLIGHT)}, got '{self.inflight}'"
            )


class Engine:
    """One model, and the generation thread that runs it."""

    def __init__(
        self, manager: ContinuousBatchingManager, processor: DeviceProcessor, router: CallbackRouter
    ) -> None:
        """Wrap a manager that has rose's processor and router."""
        self.manager = manager
        self.processor = processor
        self.facts = ModelFacts.of(manager.model)
        self._router = router
        self._on_stop: list[Callable[[], None]] = []
        self.is_stopping = False
        # Only in a serving engine built with `probes`.
        self.prober: Prober | None = None

    def start(self) -> None:
        """Start the generation thread."""
        self.is_stopping = False
        self.manager.start()
        if self.prober is not None:
            self.prober.start()

    def wake(self) -> None:
        """End the wait of an idle generation thread; any thread may call this."""
        self.manager._wake_up_loop.set()

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        *,
        max_new_tokens: int,
        on_output: OnOutput,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
    ) -> None:
        """Queue a request; `on_output` is called in the loop thread for every token.

        Args:
            request_id: id, unique among live requests.
            prompt: token ids.
            max_new_tokens: limit of generated tokens, > 0.
            on_output: called with the output so far; `is_finished()` is true for the last output.
            sampling: sampling parameters; only for an engine with `EngineConfig(sampling=True)`.
            stop_tokens: ids that end the request; the output contains the id that ended it.

        Raises:
            InvalidArgument: `sampling` is set but the engine does not sample.
            Unavailable: the generation thread is stopping or has died.
        """
        if sampling is not None and not self.processor.is_sampling:
            raise InvalidArgument(
                "sampling must be None, because this engine does not sample: build the engine with "
                "EngineConfig(sampling=True)"
            )
        self._check_accepting()
        self._router.live[request_id] = LiveRequest(on_output, sampling or Sampling())
        self.manager.add_request(
            prompt,
            request_id=request_id,
            max_new_tokens=max_new_tokens,
            streaming=True,
            eos_token_id=list(stop_tokens),
        )

    def _check_accepting(self) -> None:
        status = self.manager.background_thread_status
        refusal = status.can_accept_new_requests()
        if refusal is not None:
            cause = "" if status.fatal_error is None else f": {status.fatal_error}"
            raise Unavailable(f"the engine accepts no requests. {refusal}{cause}") from (
                status.fatal_error
            )

    def cancel(self, request_id: str) -> None:
        """Stop a request; its callback gets the output so far, marked failed."""
        self.manager.cancel_request(request_id)

    def pause(self) -> None:
        """Stop at the next step boundary; return when no step runs. Call `resume` afterwards."""
        self.manager.background_thread_status.acquire_pause(self.manager._wake_up_loop)

    def resume(self) -> None:
        """Continue after `pause`, with the same requests."""
        self.manager.background_thread_status.release_pause()

    def commit(self, commit: Commit, *, version: int, on_done: OnCommitted) -> None:
        """Queue a change of the weights for the next step boundary; any thread may call this.

        The loop thread runs all slices of the commit before the next step. A borrower runs them in
        quanta, with a gate between two slices, so serving waits for one slice at most. Commits run
        in the order of these calls; unfinished commits are abandoned when the engine stops.

        Args:
            commit: transaction over the live weights of this engine's model.
            version: version after a successful commit.
            on_done: called once with the result, in the loop thread or in the thread that calls
                `stop`.

        Raises:
            Unavailable: the generation thread is stopping or has died.
        """
        self._check_accepting()
        self.processor.commits.add(commit, version=version, on_done=on_done)
        self.wake()

    @property
    def version(self) -> int:
        """Version of the weights for the next token."""
        return self._router.version

    @property
    def is_quarantined(self) -> bool:
        """True if the weights match no version, so that no step runs."""
        return self.processor.commits.is_quarantined

    @property
    def is_running(self) -> bool:
        """True if the generation thread is alive."""
        return bool(self.manager.is_running())

    @property
    def is_accepting(self) -> bool:
        """True if `submit` would accept a request."""
        return self.manager.background_thread_status.can_accept_new_requests() is None

    @property
    def is_paused(self) -> bool:
        """True if a pause is requested."""
        return bool(self.manager.background_thread_status.is_pause_requested())

    @property
    def has_requests(self) -> bool:
        """True if the engine has unfinished requests."""
        return bool(self._router.live)

    @property
    def busy_ns(self) -> int:
        """Total duration of all steps since the start, in nanoseconds."""
        return self.processor.busy_ns

    @property
    def error(self) -> BaseException | None:
        """The exception that killed the generation thread, if any."""
        error: BaseException | None = self.manager.background_thread_status.fatal_error
        return error

    def on_stop(self, action: Callable[[], None]) -> None:
        """Run `action` when the engine is stopped."""
        self._on_stop.append(action)

    def stop(self) -> None:
        """Stop the thread at the next step boundary; remaining requests fail."""
        self.is_stopping = True
        if self.prober is not None:
            self.prober.stop()
        if self.manager.is_running():
            self.manager.stop(block=True, hard_stop=True, keep_for_next_session=True)
            # The model caches this manager. A later engine would get it, even with another config.
            vars(self.manager.model).pop("_cached_continuous_batching_manager", None)
        # The generation thread is gone, so this thread may restore the weights.
        self.processor.abandon_commits()
        for action in reversed(self._on_stop):
            action()
        self._on_stop.clear()


def _manager(model: PreTrainedModel, config: EngineConfig) -> ContinuousBatchingManager:
    check_version()
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=config.page_tokens,
            max_batch_tokens=config.max_batch_tokens,
            max_requests_per_batch=config.max_requests_per_batch,
            allow_block_sharing=config.prefix_cache,
            safety_margin=config.spare_share,
            return_logprobs=config.sampling,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            seed=0,
        ),
    )
    manager.output_router = CallbackRouter(version=config.version)
    return manager


def _engine(
    manager: ContinuousBatchingManager,
    cache: VersionedCache,
    scheduler_class: type[UndoingScheduler],
    processor_class: Callable[..., DeviceProcessor],
    config: EngineConfig,
) -> Engine:
    """Build an engine: put cache, scheduler and processor into `manager`, in place of its own."""
    cb_config = manager.continuous_batching_config
    manager._use_prefix_sharing = cache.use_prefix_sharing
    update_cb_config_after_cache_creation(
        cb_config=cb_config, num_blocks=cache.num_blocks, max_batch_tokens=cache.max_batch_tokens
    )
    if SLIDING_ATTENTION in cache.cache_allocators:
        cb_config.max_blocks_per_request = 0
    scheduler = scheduler_class(
        cache=cache,
        safety_margin=cb_config.safety_margin,
        max_requests_per_batch=cb_config.max_requests_per_batch,
    )
    processor = processor_class(
        clock=config.clock,
        cores=config.cores,
        is_sampling=config.sampling,
        inflight=config.inflight,
        cache=cache,
        config=manager.model.config.get_text_config(),
        generation_config=manager.generation_config,
        continuous_batching_config=cb_config,
        logit_processor=manager.logit_processor,
        input_queue=manager.input_queue,
        cancel_queue=manager.cancel_queue,
        output_router=manager.output_router,
        background_thread_status=manager.background_thread_status,
        model_device=manager.model.device,
        model_dtype=manager.model.dtype,
        scheduler=scheduler,
        distributed_helper=manager.distributed_helper,
    )
    manager.batch_processor = processor
    check(
        manager._create_batch_processor() is processor,
        "the manager of transformers ignored rose's processor",
    )
    return Engine(manager, processor, manager.output_router)


def _cache_arguments(manager: ContinuousBatchingManager) -> dict[str, Any]:
    model = manager.model
    return {
        "config": model.config.get_text_config(),
        "continuous_batching_config": manager.continuous_batching_config,
        "device": model.device,
        "distributed_helper": manager.distributed_helper,
        "dtype": model.dtype,
        "model_supports_logits_to_keep": bool(model._supports_logits_to_keep()),
    }


def _slab_cache(
    lane: KVLane, manager: ContinuousBatchingManager, config: EngineConfig
) -> SlabCache:
    model = manager.model
    name = f"{type(model).__name__} {model.name_or_path}"
    return SlabCache(lane, model=name, version=config.version, **_cache_arguments(manager))


def kv_geometry(model: PreTrainedModel, config: EngineConfig) -> KVGeometry:
    """Return the KV layout that a lane must have for an engine of `model`.

    Raises:
        Unavailable: the installed transformers is not supported.
    """
    manager = _manager(model, config)
    return block_geometry(
        model.config.get_text_config(),
        dtype=model.dtype,
        cb_config=manager.continuous_batching_config,
    )


def stock_engine(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    cache_blocks: int,
    processor: Callable[..., DeviceProcessor] = DeviceProcessor,
) -> Engine:
    """Build an engine with transformers' own cache and rules of scheduling, as a baseline.

    Args:
        model: causal language model.
        config: configuration, as for the other engines.
        cache_blocks: size of the engine's private cache, in blocks of `page_tokens` tokens.
        processor: class of the step loop; a subclass may stop between two steps by its own rules.
    """
    manager = _manager(model, config)
    manager.continuous_batching_config.num_blocks = cache_blocks
    cache = VersionedCache(**_cache_arguments(manager))
    return _engine(manager, cache, UndoingScheduler, processor, config)


def serving_engine(
    model: PreTrainedModel, lane: ServingLane, config: EngineConfig, *, probes: bool = True
) -> Engine:
    """Build serving's engine: `lane` protects its steps, and its KV is in rose's pool.

    Args:
        model: causal language model.
        lane: lane made with `kv_geometry(model, config)`.
        config: configuration, as for the other engines.
        probes: whether the idle engine runs probes, which provide evidence for certificates;
            otherwise nothing is lent until enough steps of users' requests were measured.
    """
    manager = _manager(model, config)
    cache = _slab_cache(lane, manager, config)

    def processor(**kwargs: Any) -> ServingProcessor:
        return ServingProcessor(lane, **kwargs)

    engine = _engine(manager, cache, PreemptingScheduler, processor, config)
    serving = engine.processor
    check(isinstance(serving, ServingProcessor), "serving's processor is a ServingProcessor")
    if probes:
        engine.prober = Prober(engine, lane)
        serving.probes = engine.prober.names
    return engine


def rollout_engine(
    model: PreTrainedModel,
    lane: RolloutLane,
    config: EngineConfig,
    *,
    layers_per_segment: float,
) -> Engine:
    """Build a borrower's engine, with gates every few layers.

    When serving needs slabs, requests are preempted and later continue at their last token.

    Args:
        model: causal language model; must not be serving's model object.
        lane: lane made with `kv_geometry(model, config)`.
        config: configuration, as for the other engines.
        layers_per_segment: decoder layers between two gates; see `gate_layers`.

    Raises:
        InvalidArgument: the model is not on the lane's GPU.
    """
    check_device(lane.device, model.device)
    manager = _manager(model, config)
    cache = _slab_cache(lane, manager, config)
    wake: threading.Event = manager._wake_up_loop

    def processor(**kwargs: Any) -> RolloutProcessor:
        return RolloutProcessor(lane, wake, move_bytes=config.move_bytes, **kwargs)

    engine = _engine(manager, cache, PreemptingScheduler, processor, config)
    borrower = engine.processor
    check(isinstance(borrower, RolloutProcessor), "the borrower's processor is a RolloutProcessor")
    lane.on_revoke = borrower.give_up_slabs
    lane.on_room = borrower.note_room
    lane.on_look = borrower.while_parked
    engine.on_stop(gate_layers(lane, model, every=layers_per_segment))
    return engine
