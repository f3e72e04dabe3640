"""Models by name, or by the path of their `config.json`."""

import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.memory.model_config import read_shape
from rose.memory.model_shape import ModelShape
from rose.whole_file import read_input

# A usual config.json has a few KiB.
_FILE_BYTES_MAX: Final = 1 << 20


def preset_names() -> tuple[str, ...]:
    """Return the names of the built-in models."""
    return tuple(_presets())


def find_model(named: str) -> ModelShape:
    """Return the shape of a model.

    Args:
        named: name of a built-in model, in upper or lower case, or the path of a `config.json` or
            its folder.

    Raises:
        InvalidArgument: there is no such model, or its file is invalid.
    """
    for name, config in _presets().items():
        if name.lower() == named.lower():
            return read_shape(config, name=name)
    path = Path(named)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise InvalidArgument(
            f"no model '{named}'; name a config.json, its folder, or one of the built-in models: "
            f"{', '.join(preset_names())}"
        )
    return read_shape(_read(path), name=named)


def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("rose.memory").joinpath("presets.json").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = json.loads(text)
    return presets


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_input(path, bytes_max=_FILE_BYTES_MAX))
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InvalidArgument(f"{path} is not JSON") from None
    if not isinstance(config, dict):
        raise InvalidArgument(f"{path} must contain a JSON object")
    return config
