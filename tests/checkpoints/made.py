"""Checkpoints for tests, written by hand so that every byte of them can be chosen."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Content = Mapping[str, tuple[str, npt.NDArray[Any]]]
"""Name: dtype of the file, and the elements as bits."""


def header_of(content: Content, metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, bits) in content.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(bits.shape),
            "data_offsets": [at, at + bits.nbytes],
        }
        at += bits.nbytes
    return json.dumps(header).encode()


def file_bytes(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def write_safetensors(
    path: Path, content: Content, metadata: Mapping[str, str] | None = None, *, padding: int = 0
) -> Path:
    """`padding` spaces behind the header decide where in a word the tensors begin."""
    data = b"".join(bits.tobytes() for _, bits in content.values())
    path.write_bytes(file_bytes(header_of(content, metadata) + b" " * padding, data))
    return path


def write_folder(path: Path, files: Mapping[str, Content], *, index: bool = True) -> Path:
    path.mkdir()
    for name, content in files.items():
        write_safetensors(path / name, content, {"format": "pt"})
    if index:
        weight_map = {name: file for file, content in files.items() for name in content}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def bits(generator: np.random.Generator, width: int, *shape: int) -> npt.NDArray[Any]:
    row = generator.integers(0, 1 << width, math.prod(shape), np.uint64)
    return row.astype(f"u{width // 8}").reshape(shape)


def stepped(
    generator: np.random.Generator, old: npt.NDArray[Any], density: float
) -> npt.NDArray[Any]:
    """Mostly steps of one, some of any size."""
    new = old.copy()
    row = new.reshape(-1)
    where = np.flatnonzero(generator.random(row.size) < density)
    steps = generator.choice(np.array([1, -1, 1, -1, 2, 5, 1000]), where.size)
    row[where] += steps.astype(np.int64).astype(row.dtype)
    return new


def sparse_safetensors(path: Path, elements: int) -> Path:
    """A bf16 tensor of zeros that takes no room on the disk."""
    entry = {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}
    head = file_bytes(json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode())
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 2 * elements)
    return path
