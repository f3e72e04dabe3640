"""Facts of a model that its engine does not tell, from the model's folder on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

_BYTES_MAX: Final = 1 << 20
_COUNT_MAX: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Facts of a model; None and empty: its files do not tell.

    Args:
        vocabulary: number of token ids.
        positions: most tokens of a context.
        eos_token_ids: ids that end the model's output, ascending.
    """

    vocabulary: int | None = None
    positions: int | None = None
    eos_token_ids: tuple[int, ...] = ()


def read_model(folder: str) -> ModelFiles:
    """Return what the files `config.json` and `generation_config.json` of a folder tell."""
    config, generation = (
        _read(Path(folder) / f"{name}config.json") for name in ("", "generation_")
    )
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {}

    def first(key: str) -> int | None:
        return next((one for part in (config, text) for one in _whole(part.get(key))), None)

    parts = config, text, generation
    ends = {end for part in parts for end in _whole(part.get("eos_token_id"))}
    return ModelFiles(first("vocab_size"), first("max_position_embeddings"), tuple(sorted(ends)))


def _whole(value: Any) -> list[int]:
    found = value if isinstance(value, list) else [value]
    return [one for one in found if type(one) is int and 0 <= one < _COUNT_MAX]


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
