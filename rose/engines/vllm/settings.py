"""Settings of a vLLM server under rose, and the versions and options of vLLM that rose supports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rose.engines.versions import VLLM, is_among
from rose.errors import Unavailable
from rose.executor import SLO, Policy
from rose.memory import Isolation, check_isolation

KEY: Final = "rose"
"""Name of rose's settings in `--additional-config`."""

_FULL: Final = frozenset({"attention", "full_attention"})


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Settings of a serving engine.

    Args:
        listen: path of the socket at which a borrower attaches; None: nothing is lent.
        ttft_ms: target for the time to the first token, in milliseconds.
        tpot_ms: target for the time between tokens, in milliseconds.
        slowdown: `SLO.slowdown`, the share by which rollouts may stretch the time per token.
        revoke_ms: `Policy.revoke_ms`, the deadline of a revocation, in milliseconds.
        epsilon: `Policy.epsilon`, the share of steps that may exceed their bound.
        slab_bytes: size of a slab in bytes; None: the smallest size that suits the model.
        isolation: memory that the borrower can access: "shared", the whole pool, or "mapped", only
            slabs that were lent to it.
        log_path: path of the certificate log for `rose verify`; "": no log is written.
    """

    listen: str | None
    ttft_ms: float
    tpot_ms: float
    slowdown: float = 0.0
    revoke_ms: float = 50.0
    epsilon: float = 0.01
    slab_bytes: int | None = None
    isolation: Isolation = "shared"
    log_path: str = ""

    def __post_init__(self) -> None:
        """Check the values, so that bad ones are refused before the engine starts.

        Raises:
            InvalidArgument: a target, the deadline or the share is out of range, or the isolation
                is unknown.
        """
        check_isolation(self.isolation)
        self.slo()
        self.policy()

    def slo(self) -> SLO:
        """Return serving's targets."""
        return SLO(self.ttft_ms, self.tpot_ms, self.slowdown)

    def policy(self) -> Policy:
        """Return the limits for lending."""
        return Policy(revoke_ms=self.revoke_ms, epsilon=self.epsilon)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of a borrower.

    Args:
        attach: path of serving's socket.
        events: folder in which front processes make the sockets that get the engine's state. The
            start of the server sets it.
    """

    attach: str
    events: str = ""


def check_supported(version: str) -> None:
    """Check that rose supports a version of vLLM.

    Args:
        version: full version, for example "0.33.1".

    Raises:
        Unavailable: rose does not drive this version.
    """
    if not is_among(version, VLLM):
        raise Unavailable(f"vLLM {version} is not supported: install {' or '.join(VLLM)}")


def read_settings(additional_config: object) -> Mapping[str, Any]:
    """Return rose's settings in vLLM's `additional_config`.

    Raises:
        Unavailable: `additional_config` has no settings of rose, because vLLM was started without
            rose's command.
    """
    found = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    if not isinstance(found, Mapping):
        raise Unavailable(
            "rose's scheduler and worker need rose's settings: start the server with "
            "`rose vllm serve` or `rose vllm rollout`"
        )
    return found


def check_config(config: Any) -> None:
    """Check that rose supports a server's model and options, before any weight is loaded.

    Args:
        config: vLLM's `VllmConfig`.

    Raises:
        Unavailable: rose does not support the model, an option or the device; the message names it.
    """
    parallel = config.parallel_config
    kind = _unsupported_attention(config)
    refusals = {
        "rose drives one worker, so tensor x pipeline and data parallel sizes must be 1, got "
        f"{parallel.world_size} and {parallel.data_parallel_size}": (
            parallel.world_size > 1 or parallel.data_parallel_size > 1
        ),
        f"all layers of the model must have full attention of one shape, got {kind}": kind != "",
        "rose drives the V1 model runner: set VLLM_USE_V2_MODEL_RUNNER=0": (
            config.use_v2_model_runner
        ),
        "rose undoes steps one at a time: remove --async-scheduling": (
            config.scheduler_config.async_scheduling
        ),
        "rose does not support speculative decoding: remove --speculative-config": (
            config.speculative_config is not None
        ),
        "rose does not support KV transfer: remove --kv-transfer-config": (
            config.kv_transfer_config is not None
        ),
        f"rose drives vLLM on CPUs only, got the device {config.device_config.device_type}: "
        "install vLLM for CPUs": (config.device_config.device_type != "cpu"),
    }
    for sentence, is_refused in refusals.items():
        if is_refused:
            raise Unavailable(sentence)


def _unsupported_attention(config: Any) -> str:
    """Return the kind of attention for which a borrower's or server's KV does not fit; "" if none.

    The worker checks the KV layout itself. This check needs the model's config.json only.
    """
    model, text = config.model_config, config.model_config.hf_text_config
    if model.runner_type != "generate":
        return f"a model that is run for {model.runner_type}"
    named = {
        "latent attention (MLA)": model.use_mla,
        "no attention": model.is_attention_free,
        "layers without attention (hybrid)": model.is_hybrid,
        "an encoder and a decoder": model.is_encoder_decoder,
    }
    found = [name for name, is_so in named.items() if is_so]
    if found:
        return found[0]
    kinds = set(getattr(text, "layer_types", None) or ())
    if model.get_sliding_window() is not None and not kinds:
        return "sliding-window attention"
    # With this option vLLM keeps the whole KV of layers with a window, if a layer has none.
    keeps_all = config.scheduler_config.disable_hybrid_kv_cache_manager and kinds & _FULL
    if model.get_sliding_window() is None or keeps_all:
        kinds.discard("sliding_attention")
    return ", ".join(sorted(kinds)) if kinds - _FULL else ""
