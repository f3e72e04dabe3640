"""Settings of a vLLM server under rose, passed in vLLM's `--additional-config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rose.errors import Unavailable

SUPPORTED: Final = ("0.32", "0.33")
"""Minor versions of vLLM that rose supports."""

KEY: Final = "rose"
"""Name of rose's settings in `--additional-config`."""


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
        log_path: path of the certificate log for `rose verify`; "": no log is written.
    """

    listen: str | None
    ttft_ms: float
    tpot_ms: float
    slowdown: float = 0.0
    revoke_ms: float = 50.0
    epsilon: float = 0.01
    slab_bytes: int | None = None
    log_path: str = ""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of a borrower.

    Args:
        attach: path of serving's socket.
    """

    attach: str


def check_supported(version: str) -> None:
    """Check that rose supports a version of vLLM.

    Args:
        version: full version, for example "0.33.1".

    Raises:
        Unavailable: rose does not drive this version.
    """
    if not version.startswith(tuple(f"{minor}." for minor in SUPPORTED)):
        raise Unavailable(f"vLLM {version} is not supported: install {' or '.join(SUPPORTED)}")


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
