"""What is a checkpoint: one file, or a folder with or without an index."""

import json
from pathlib import Path

import numpy as np
import pytest

from rose.checkpoints.checkpoint import open_checkpoint
from rose.errors import CorruptData, InvalidArgument, RoseError
from rose_lab.checkpoints.inspection import kind_of
from tests.checkpoints.made import write_folder, write_safetensors

ROW = ("BF16", np.arange(6, dtype=np.uint16))
OTHER = ("F32", np.arange(4, dtype=np.uint32).reshape(2, 2))
INDEX = "model.safetensors.index.json"


def test_file_and_folder_have_the_same_tensors(tmp_path: Path) -> None:
    one = open_checkpoint(write_safetensors(tmp_path / "x.bin", {"a": ROW, "b": OTHER}))
    files = {"m-1.safetensors": {"b": OTHER}, "m-0.safetensors": {"a": ROW}}
    for index in (True, False):
        folder = write_folder(tmp_path / f"folder{index}", files, index=index)
        (folder / "notes.txt").write_text("no tensors")
        other = open_checkpoint(folder)
        assert other.is_folder
        assert [file.path.name for file in other.files] == ["m-0.safetensors", "m-1.safetensors"]
        assert list(other.tensors) == list(one.tensors) == ["a", "b"]
        assert other.nbytes == one.nbytes == 28
        for name in ("a", "b"):
            found = [it.tensors[name].units(1, 2).tolist() for it in (one, other)]
            assert found == [[1, 2], [1, 2]]
    assert not one.is_folder


def test_index_says_which_files_count(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", {"m.safetensors": {"a": ROW}})
    write_safetensors(folder / "consolidated.safetensors", {"a": ROW})
    assert [file.path.name for file in open_checkpoint(folder).files] == ["m.safetensors"]
    (folder / INDEX).unlink()
    with pytest.raises(CorruptData, match="'a' is in both consolidated"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 3}}', "places 'a' in 3, which does not name a file of the folder"),
        ('{"weight_map": {"a": "../m.safetensors"}}', "which does not name a file of the folder"),
        ('{"weight_map": {"a": ".."}}', "which does not name a file of the folder"),
        ('{"weight_map": {"a": ""}}', "which does not name a file of the folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot read"),
        (
            '{"weight_map": {"b": "m.safetensors"}}',
            "'b' in m.safetensors, which does not contain it",
        ),
        (
            '{"weight_map": {"a": "n.safetensors", "c": "m.safetensors"}}',
            "which does not contain it",
        ),
    ],
)
def test_index_that_is_wrong_is_refused(tmp_path: Path, index: str, says: str) -> None:
    files = {"m.safetensors": {"a": ROW}, "n.safetensors": {"c": ROW}}
    folder = write_folder(tmp_path / "f", files)
    (folder / INDEX).write_text(index)
    with pytest.raises(RoseError) as caught:
        open_checkpoint(folder)
    assert says in str(caught.value)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        open_checkpoint(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="no file whose name ends in"):
        open_checkpoint(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps({}))
    with pytest.raises(InvalidArgument, match="has several indexes"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embed"),
        ("transformer.wte.weight", "embed"),
        ("lm_head.weight", "head"),
        ("output.weight", "head"),
        ("model.layers.11.self_attn.q_proj.weight", "attn"),
        ("model.layers.3.self_attn.q_norm.weight", "norm"),
        ("model.layers.3.post_attention_layernorm.weight", "norm"),
        ("transformer.h.7.attn.c_attn.weight", "attn"),
        ("transformer.h.7.ln_1.bias", "norm"),
        ("transformer.h.7.mlp.c_fc.weight", "mlp"),
        ("model.layers.0.mlp.experts.12.down_proj.weight", "mlp"),
        ("layers.2.feed_forward.w1.weight", "mlp"),
        ("model.norm.weight", "norm"),
        ("model.layers.5.mixer.A_log", "other"),
    ],
)
def test_names_say_what_a_tensor_is_for(name: str, kind: str) -> None:
    assert kind_of(name) == kind
