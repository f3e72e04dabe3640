"""Tokenizers and end tokens of model folders. Tokenizers need the extra `transformers`."""

import json
from pathlib import Path
from typing import Any, Final, cast

from rose.adapters.text import Tokenizer
from rose.errors import InvalidArgument

# Files that may list end tokens, and the objects in them that may have the list.
_FILES: Final = ("generation_config.json", "config.json")
_PARTS: Final = ("text_config", "llm_config")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a model's folder, without downloads.

    Raises:
        InvalidArgument: the folder has no tokenizer.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 (an extra)

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder} has no tokenizer: {error}") from error
    return cast("Tokenizer", loaded)


def load_eos_token_ids(folder: Path, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """Return all end tokens of a model: of its tokenizer, generation config and config.

    Raises:
        InvalidArgument: a file is not JSON, or an id is not a number >= 0.
    """
    found: list[Any] = [None if tokenizer is None else tokenizer.eos_token_id]
    for name in _FILES:
        path = folder / name
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path} must be a readable JSON file: {error}") from error
        for part in (document, *(document.get(key) or {} for key in _PARTS)):
            ids = part.get("eos_token_id")
            found += ids if isinstance(ids, list) else [ids]
    ids = tuple(dict.fromkeys(one for one in found if one is not None))
    for one in ids:
        if not isinstance(one, int) or one < 0:
            raise InvalidArgument(f"eos_token_id must be numbers >= 0, got {one!r} in {folder}")
    return ids
