"""A latency model between two runs: saved whole, loaded with the same forecasts to the last bit."""

import json
import zlib
from pathlib import Path
from typing import Any, Final

from rose._core import LatencyModel, LatencyState
from rose.errors import CorruptData, InvalidArgument
from rose.slo.policy import ADAPTATION_SHARE, FORGETTING, RESIDUAL_WINDOW, Policy
from rose.whole_file import write_whole

_FORMAT: Final = "rose latency model"
_VERSION: Final = 2
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
    """Return a model that has seen no step.

    Args:
        policy: the knobs.
        step_tokens: the most tokens of one engine step, which tells a full chunk from a part.
        prior_ms: the five coefficients of `rose.slo.prior`; None for those of `policy`.
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
    """Return everything that `model` has learned, as JSON.

    Args:
        model: the model to save.
        identity: names the device, the model and the step size that the steps were measured on.
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

    Its predictions are those that were saved; its bounds count once fresh steps confirm them.
    Another window keeps the newest residuals that fit, another ε starts the level of each bound
    anew.

    Args:
        text: the output of `save_text`.
        policy: the knobs.
        identity: the identity that the model must have; None accepts any.

    Raises:
        CorruptData: the text is damaged, or is no saved model.
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
            f"this is not a latency model that rose saved (version {_VERSION}), or it was changed"
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
            f"name a file in a directory that can be written"
        ) from None


def load_latency_model(
    path: Path, policy: Policy, *, identity: str | None = None
) -> LatencyModel | None:
    """Return the model that was saved to `path`; None without a file, or for another identity.

    Raises:
        InvalidArgument: the file cannot be read.
        CorruptData: it is damaged, or holds no saved model; the sentence says what helps.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return load_text(text, policy, identity=identity)
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
