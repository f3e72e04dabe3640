"""A latency model between two runs: saved whole, loaded with the same forecasts to the last bit."""

import json
import zlib
from pathlib import Path
from typing import Any, Final

from rose._core import LatencyModel, LatencyState
from rose.errors import CorruptData, InvalidArgument
from rose.slo.policy import Policy
from rose.whole_file import write_whole

_FORMAT: Final = "rose latency model"
_VERSION: Final = 1
_FIELDS: Final = (
    "epsilon",
    "weights",
    "covariance",
    "levels",
    "scores",
    "prefill_tokens_max",
    "observations",
    "misses",
)


def new_latency_model(
    policy: Policy,
    *,
    prior_ms: tuple[float, float, float, float, float] | None = None,
) -> LatencyModel:
    """Return a model that has seen no step.

    Args:
        policy: its knobs.
        prior_ms: as of `rose.slo.prior`; None for the one of `policy`.
    """
    return LatencyModel(
        prior_ms=policy.latency_prior_ms if prior_ms is None else prior_ms,
        epsilon=policy.epsilon,
        forgetting=policy.forgetting,
        adaptation=policy.adaptation,
        cold_margin=policy.cold_margin,
        window=policy.residual_window,
    )


def save_text(model: LatencyModel) -> str:
    """Return all that `model` has learned, as JSON."""
    state = model.state()
    learned = {name: getattr(state, name) for name in _FIELDS}
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "crc32": zlib.crc32(_canonical(learned)),
        "learned": learned,
    }
    return json.dumps(document) + "\n"


def load_text(text: str, policy: Policy) -> LatencyModel:
    """Return the model that `text` was saved from.

    Under the knobs it was saved with, it answers as it did. Another window keeps the newest
    residuals that fit, another ε starts the level of each margin anew.

    Raises:
        CorruptData: the text is damaged, or is no saved model.
    """
    try:
        document = json.loads(text)
        learned = document["learned"]
        is_sound = (
            document["format"] == _FORMAT
            and document["version"] == _VERSION
            and document["crc32"] == zlib.crc32(_canonical(learned))
        )
        state = LatencyState(**learned)
    except (KeyError, TypeError, ValueError, RecursionError):
        is_sound = False
    if not is_sound:
        raise CorruptData(
            f"this is not a latency model that rose saved (version {_VERSION}), or it was changed"
        )
    return LatencyModel.restore(
        state,
        prior_ms=policy.latency_prior_ms,
        epsilon=policy.epsilon,
        forgetting=policy.forgetting,
        adaptation=policy.adaptation,
        cold_margin=policy.cold_margin,
        window=policy.residual_window,
    )


def save_latency_model(model: LatencyModel, path: Path) -> None:
    """Write the model to `path`, whole or not at all.

    Raises:
        InvalidArgument: `path` cannot be written.
    """
    try:
        write_whole(path, save_text(model).encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the latency model to {path}: {error.strerror or error}; "
            f"name a file in a directory that can be written"
        ) from None


def load_latency_model(path: Path, policy: Policy) -> LatencyModel | None:
    """Return the model that was saved to `path`; None when there is no such file yet.

    Raises:
        InvalidArgument: the file cannot be read.
        CorruptData: it is damaged, or holds no saved model; the sentence says what helps.
    """
    try:
        return load_text(path.read_text(encoding="utf-8"), policy)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(
            f"cannot read the latency model {path}: {error.strerror or error}"
        ) from None
    except (CorruptData, UnicodeDecodeError) as error:
        what = error if isinstance(error, CorruptData) else "this is not text"
        raise CorruptData(f"{path}: {what}; delete it to start from the prior") from None


def _canonical(learned: Any) -> bytes:
    """Return one spelling of what was learned: JSON keeps every bit of a float."""
    return json.dumps(learned, sort_keys=True, separators=(",", ":")).encode()
