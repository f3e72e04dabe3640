"""Minor versions of the engines that rose drives; imports none of them."""

from typing import Final

TRANSFORMERS: Final = ("5.23", "5.24")
VLLM: Final = ("0.32", "0.33")


def is_among(version: str, minors: tuple[str, ...]) -> bool:
    """Return True if a full version, for example "0.33.1", belongs to one of the minor versions."""
    return version.startswith(tuple(f"{minor}." for minor in minors))
