"""What is a safetensors file, what is not, and that its bits come out as they went in."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize

from rose.checkpoints.safetensors_file import SafetensorsFile
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.tensors import STORED_DTYPES
from tests.checkpoints.made import bits, file_bytes, header_of, write_safetensors


def whole(file: SafetensorsFile, name: str) -> bytes:
    (tensor,) = (one for one in file.tensors if one.name == name)
    return file.units(tensor, 0, tensor.count).tobytes()


def test_file_of_the_package_is_read_with_the_same_bits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    dtypes = {
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F32": torch.float32,
        "F64": torch.float64,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I8": torch.int8,
        "U8": torch.uint8,
        "I16": torch.int16,
        "I32": torch.int32,
        "I64": torch.int64,
        "BOOL": torch.bool,
        "C64": torch.complex64,
    }
    tensors = {f"a.{name}": (10 * torch.randn(3, 7)).to(dtype) for name, dtype in dtypes.items()}
    tensors |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(3.0)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt", "ü": "é"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert {one.name for one in file.tensors} == tensors.keys()
    for one in file.tensors:
        tensor = tensors[one.name].contiguous()
        assert one.shape == tuple(tensor.shape)
        assert one.dtype == (one.name[2:] if one.name.startswith("a.") else "F32")
        assert whole(file, one.name) == bytes(tensor.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("padding", range(4))
def test_bits_are_the_same_wherever_the_tensors_begin(tmp_path: Path, padding: int) -> None:
    row = bits(np.random.default_rng(0), 32, 9)
    path = write_safetensors(tmp_path / "x", {"a": ("F32", row)}, padding=padding)
    file = SafetensorsFile(path)
    part = file.units(file.tensors[0], 2, 5)
    assert part.tolist() == row[2:7].tolist()
    assert part.flags.aligned
    assert not part.flags.writeable
    file.forget(file.tensors[0], 0, 9)
    assert part.tolist() == row[2:7].tolist()


GOOD: Any = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
NEXT: Any = {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}


def with_entry(entry: Any) -> bytes:
    return json.dumps({"a": entry, "b": NEXT}).encode()


@pytest.mark.parametrize(
    ("header", "data_bytes"),
    [
        (b'["a"]', 12),
        (b"{", 12),
        (b'{"a": ' + b"[" * 100_000, 12),
        (b'{"a": {}, "\xff": {}}', 12),
        (rb'{"\ud800": {}}', 12),
        (b'{"__metadata__": []}', 0),
        (with_entry({**GOOD, "dtype": "BF17"}), 12),
        (with_entry({**GOOD, "shape": [2, 3]}), 12),
        (with_entry({**GOOD, "shape": [1 << 62, 1 << 62]}), 12),
        (with_entry({**GOOD, "data_offsets": [8, 0]}), 12),
        (with_entry({**GOOD, "data_offsets": [2, 10]}), 12),
        (with_entry({**GOOD, "shape": [5], "data_offsets": [0, 10]}), 12),
        (with_entry(GOOD), 11),
        (with_entry(GOOD), 13),
        (b"{}", 1),
    ],
)
def test_file_that_is_wrong_is_one_sentence(tmp_path: Path, header: bytes, data_bytes: int) -> None:
    (tmp_path / "x").write_bytes(file_bytes(header, bytes(data_bytes)))
    with pytest.raises(CorruptData, match="is not a sound safetensors file: ") as caught:
        SafetensorsFile(tmp_path / "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"1234567", (100_000_001).to_bytes(8, "little"), (3).to_bytes(8, "little") + b"{}"]
)
def test_file_that_is_cut_off_in_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CorruptData, match="is not a sound safetensors file"):
        SafetensorsFile(tmp_path / "x")


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(InvalidArgument, match="cannot read"):
            SafetensorsFile(path)


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*STORED_DTYPES, "F8", ""]),
        "shape": st.lists(st.integers(-1, 5), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 24), min_size=1, max_size=3),
    }
)


@given(st.dictionaries(st.sampled_from("abc"), ENTRY, max_size=2), st.integers(0, 24))
def test_whatever_is_accepted_the_package_accepts_too(entries: Any, data: int) -> None:
    _agree(file_bytes(json.dumps(entries).encode(), bytes(data)))


@given(st.data())
def test_a_damaged_file_is_refused_or_is_one_of_the_package(data: st.DataObject) -> None:
    generator = np.random.default_rng(0)
    content = {"a": ("BF16", bits(generator, 16, 2, 3)), "b": ("F32", bits(generator, 32, 2))}
    sound = bytearray(file_bytes(header_of(content, {"format": "pt"}), bytes(20)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sound) - 1))
        sound[at] = data.draw(st.sampled_from(b'0123456789"{}[],: \x00\xff'))
    end = data.draw(st.integers(1, len(sound))) if data.draw(st.booleans()) else len(sound)
    _agree(bytes(sound[:end]))


def _agree(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(content)
        try:
            file = SafetensorsFile(path)
        except CorruptData as error:
            assert "\n" not in str(error)  # noqa: PT017
            return
    theirs = dict(deserialize(content))
    assert {one.name for one in file.tensors} == theirs.keys()
    for one in file.tensors:
        assert one.dtype == theirs[one.name]["dtype"]
        assert list(one.shape) == theirs[one.name]["shape"]
        assert whole(file, one.name) == bytes(theirs[one.name]["data"])


def test_element_type_that_rose_does_not_know_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(STORED_DTYPES, "BF16")  # As if the package were newer than rose.
    (tmp_path / "x").write_bytes(file_bytes(with_entry(GOOD), bytes(12)))
    with pytest.raises(CorruptData, match=r"'a' of .*x has the dtype BF16, unknown to rose"):
        SafetensorsFile(tmp_path / "x")
