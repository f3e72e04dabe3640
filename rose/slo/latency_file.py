"""Saved latency models. A loaded model makes bit-identical predictions."""

import json
import zlib
from pathlib import Path
from typing import Any, Final

from rose._core import LatencyModel, LatencyState
from rose.errors import CorruptData, InvalidArgument
from rose.slo.policy import ADAPTATION_SHARE, FORGETTING, RESIDUAL_WINDOW, Policy
from rose.whole_file import read_input, write_whole

_FORMAT: Final = "rose latency model"
_VERSION: Final = 2
_BYTES_MAX: Final = 1 << 20
_FIELDS: Final = (
    "epsilon",
    "step_tokens",
    "weights",
    "covariance",
    "levels",
    "scores",
    "seen",
    "observations",
    "misses",
)


def new_latency_model(
    policy: Policy,
    *,
    step_tokens: int,
    prior_ms: tuple[float, float, float, float, float] | None = None,
) -> LatencyModel:
    """Return a model without observations.

    Args:
        policy: source of the parameters.
        step_tokens: largest number of tokens in one engine step; a step with nearly as many is a
            full chunk, which has its own bound.
        prior_ms: the five initial coefficients (see `rose.slo.prior`); None:
            `policy.latency_prior_ms`.
    """
    return LatencyModel(
        prior_ms=policy.latency_prior_ms if prior_ms is None else prior_ms,
        epsilon=policy.epsilon,
        forgetting=FORGETTING,
        adaptation=policy.epsilon * ADAPTATION_SHARE,
        window=RESIDUAL_WINDOW,
        step_tokens=step_tokens,
    )


def save_text(model: LatencyModel, *, identity: str) -> str:
    """Return all that `model` has learned, as JSON.

    Args:
        model: model to save.
        identity: text that names the device, model and step size of the measured steps.
    """
    state = model.state()
    learned = {name: getattr(state, name) for name in _FIELDS}
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "identity": identity,
        "crc32": zlib.crc32(_canonical([identity, learned])),
        "learned": learned,
    }
    return json.dumps(document) + "\n"


def load_text(text: str, policy: Policy, *, identity: str | None = None) -> LatencyModel | None:
    """Return the model that `text` was saved from, or None if it has another identity.

    The model makes the same predictions as the saved one, and its bounds apply once new steps
    confirm them. If this version of rose has a shorter window, only the newest residuals are kept.
    If `policy` has another epsilon, the level of each bound is reset.

    Args:
        text: output of `save_text`.
        policy: source of the parameters.
        identity: required identity; None accepts any.

    Raises:
        CorruptData: the text is damaged, or not a saved model.
    """
    try:
        document = json.loads(text)
        learned = document["learned"]
        is_sound = (
            document["format"] == _FORMAT
            and document["version"] == _VERSION
            and document["crc32"] == zlib.crc32(_canonical([document["identity"], learned]))
        )
        state = LatencyState(**learned)
    except (KeyError, TypeError, ValueError, RecursionError):
        is_sound = False
    if not is_sound:
        raise CorruptData(
            f"this is not a saved latency model of version {_VERSION}, or it was changed after "
            f"rose saved it"
        )
    if identity not in {None, document["identity"]}:
        return None
    return LatencyModel.restore(
        state,
        prior_ms=policy.latency_prior_ms,
        epsilon=policy.epsilon,
        forgetting=FORGETTING,
        adaptation=policy.epsilon * ADAPTATION_SHARE,
        window=RESIDUAL_WINDOW,
    )


def save_latency_model(model: LatencyModel, path: Path, *, identity: str) -> None:
    """Write the model to `path`, whole or not at all.

    Raises:
        InvalidArgument: `path` cannot be written.
    """
    try:
        write_whole(path, save_text(model, identity=identity).encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the latency model to {path}: {error.strerror or error}; "
            f"choose a file in a directory that can be written"
        ) from None


def load_latency_model(
    path: Path, policy: Policy, *, identity: str | None = None
) -> LatencyModel | None:
    """Return the model saved at `path`; None if no file exists or the identity differs.

    Raises:
        InvalidArgument: the file cannot be read.
        CorruptData: the file is damaged, or not a saved model; the message has a remedy.
    """
    try:
        text = read_input(path, bytes_max=_BYTES_MAX).decode()
        return load_text(text, policy, identity=identity)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(
            f"cannot read the latency model {path}: {error.strerror or error}"
        ) from None
    except (CorruptData, UnicodeDecodeError) as error:
        what = error if isinstance(error, CorruptData) else "this is not text"
        raise CorruptData(f"{path}: {what}; delete it to learn step times anew") from None


def _canonical(learned: Any) -> bytes:
    """Return a canonical text: JSON keeps every bit of a float."""
    return json.dumps(learned, sort_keys=True, separators=(",", ":")).encode()
