"""Tokenizers of transformers. Needs the extra `transformers`."""

from pathlib import Path
from typing import cast

from transformers import AutoTokenizer

from rose.adapters.text import Tokenizer
from rose.errors import InvalidArgument


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a model's folder, without downloads.

    Raises:
        InvalidArgument: the folder has no tokenizer.
    """
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder} has no tokenizer: {error}") from error
    return cast("Tokenizer", loaded)
