"""What a tensor is for, told by its name as the model families of today write it."""

import re
from typing import Final

# The first that is found counts: a norm inside of attention is a norm.
_KINDS: Final = (
    ("norm", r"norm|\bln_|\bln\d|layer_?norm"),
    ("head", r"lm_head|embed_out|score\.|(?:^|\.)output\.weight|v_head|value_head"),
    ("embed", r"embed|\bwte\b|\bwpe\b|(?:^|\.)shared\.weight"),
    ("attn", r"attn|attention|[qkvo]_proj|qkv|\bwq\b|\bwk\b|\bwv\b|\bwo\b"),
    ("mlp", r"mlp|ffn|feed_forward|expert|gate|up_proj|down_proj|\bfc\d|\bw[123]\b"),
)
_PATTERNS: Final = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_LAYER: Final = re.compile(r"(?:layers?|blocks?|\bh)\.(\d+)\.")
OTHER: Final = "other"
KINDS: Final = ("embed", "attn", "mlp", "norm", "head", OTHER)


def kind_of(name: str) -> str:
    """Return one of `KINDS`."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)


def layer_of(name: str) -> int | None:
    """Return the number of the layer that a tensor belongs to; None if it is in none."""
    found = _LAYER.search(name)
    return None if found is None else int(found[1])
