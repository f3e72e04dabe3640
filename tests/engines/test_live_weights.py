"""Live weights: the row of bits, the parameters, and that they never differ."""

import copy
from dataclasses import replace
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from rose.engines.transformers import LiveWeights, load_model
from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_pack
from rose.transfer.codec.operations import digest
from rose.transfer.digests import TileDigests
from tests.engines.intact import flat_bits, is_intact
from tests.engines.policies import TileCommit

TILE = 4096
# On a GPU there is no row beside the buffer; the same code runs on any torch tensor.
each_place = pytest.mark.parametrize("is_in_place", [False, True], ids=["row", "in_place"])


def live(model, *, is_in_place: bool) -> LiveWeights:
    is_on_host = PropertyMock(return_value=not is_in_place)
    with patch.object(LiveWeights, "is_on_host", is_on_host):
        return LiveWeights(model, tile_elements=TILE)


@pytest.fixture(scope="module")
def model():
    return load_model("micro-policy", seed=3)


def changed(bits: np.ndarray, *, seed: int, share: float) -> np.ndarray:
    """The row some optimizer steps later: neighbours in bf16, and a few wild ones."""
    rng = np.random.default_rng(seed)
    fresh = bits.copy()
    at = np.flatnonzero(rng.random(len(bits)) < share)
    fresh[at] += rng.integers(0, 3, len(at)).astype(np.uint16) - 1
    wild = at[rng.random(len(at)) < 0.1]
    fresh[wild] = rng.integers(0, 0x7F80, len(wild)).astype(np.uint16)
    return fresh


def deltas(weights: LiveWeights, fresh: np.ndarray) -> list[Delta]:
    shadow = weights.row.copy()
    return [delta_pack(fresh[tile.where], shadow[tile.where]) for tile in weights.cut]


def digests_of(weights: LiveWeights, bits: np.ndarray) -> list[tuple[int, int]]:
    return [digest(bits[tile.where]) for tile in weights.cut]


def test_tied_weights_are_in_the_row_once() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    torch.manual_seed(0)
    tied = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True)).float()
    free = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=False)).float()
    assert len(flat_bits(free)) - len(flat_bits(tied)) == 64 * 32
    weights = LiveWeights(tied, tile_elements=TILE)
    assert tied.lm_head.weight.data_ptr() == tied.model.embed_tokens.weight.data_ptr()
    assert is_intact(weights)


def test_rounded_model_equals_its_bits_and_live_weights_change_nothing_else(model) -> None:
    ours = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    tokens = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        before = ours(tokens).logits
        weights = LiveWeights(ours, tile_elements=TILE)
        assert torch.equal(ours(tokens).logits, before)
    assert np.array_equal(flat_bits(ours), weights.row)
    assert is_intact(weights)


@each_place
@given(seed=st.integers(0, 2**31), share=st.sampled_from([0.0, 0.0005, 0.02, 0.6]))
@settings(max_examples=8, deadline=None)
def test_apply_and_undo_keep_row_and_parameters_equal(
    model, *, is_in_place: bool, seed: int, share: float
) -> None:
    ours = copy.deepcopy(model)
    weights = live(ours, is_in_place=is_in_place)
    base = weights.row.copy()
    fresh = changed(base, seed=seed, share=share)
    packed = deltas(weights, fresh)
    for tile, delta in enumerate(packed):
        weights.apply(tile, delta, undo=False)
    assert is_intact(weights)
    assert np.array_equal(weights.row, fresh)
    assert np.array_equal(flat_bits(ours), fresh)
    assert [weights.digest(tile) for tile in range(weights.tiles)] == digests_of(weights, fresh)
    for tile in reversed(range(weights.tiles)):
        weights.apply(tile, packed[tile], undo=True)
    assert is_intact(weights)
    assert np.array_equal(weights.row, base)
    assert np.array_equal(flat_bits(ours), base)
    assert [weights.digest(tile) for tile in range(weights.tiles)] == digests_of(weights, base)


@each_place
def test_bad_delta_changes_nothing(model, *, is_in_place: bool) -> None:
    weights = live(copy.deepcopy(model), is_in_place=is_in_place)
    base = weights.row.copy()
    good = deltas(weights, changed(base, seed=1, share=0.05))[2]
    bad = replace(good, payload=good.payload[:-1])
    for undo in (False, True):
        with pytest.raises(CorruptData):
            weights.apply(2, bad, undo=undo)
        with pytest.raises(InvalidArgument):
            weights.apply(weights.tiles, good, undo=undo)
        with pytest.raises(InvalidArgument):
            weights.apply(weights.tiles - 1, good, undo=undo)
    assert np.array_equal(weights.row, base)
    assert is_intact(weights)


def test_weights_are_intact_until_a_bit_or_the_storage_of_a_parameter_changes(model) -> None:
    ours = copy.deepcopy(model)
    weights = LiveWeights(ours, tile_elements=TILE)
    last = list(ours.parameters())[-1]
    with torch.no_grad():
        last.view(-1)[-1].nextafter_(torch.tensor(torch.inf))
    assert not is_intact(weights)
    again = LiveWeights(copy.deepcopy(model), tile_elements=TILE)
    assert is_intact(again)
    replaced = copy.deepcopy(model)
    weights = LiveWeights(replaced, tile_elements=TILE)
    parameter = next(replaced.parameters())
    parameter.data = parameter.data.clone()
    assert not is_intact(weights)


def test_low_halves_are_repaired_and_bits_are_read_in_place(model) -> None:
    ours = copy.deepcopy(model)
    weights = live(ours, is_in_place=True)
    expected = flat_bits(ours)
    assert np.array_equal(
        np.concatenate([weights.bits(at) for at in range(weights.tiles)]), expected.view(np.int16)
    )
    assert np.array_equal(weights.row, expected)
    assert (
        weights.digests().total == TileDigests(dict(enumerate(digests_of(weights, expected)))).total
    )
    parameter = next(ours.parameters())
    with torch.no_grad():
        parameter.view(torch.int32).view(-1)[5] ^= 3
    assert not is_intact(weights)
    assert [at for at in range(weights.tiles) if weights.repair(at)] == [0]
    assert is_intact(weights)
    assert np.array_equal(flat_bits(ours), expected)


def test_version_is_committed_and_rolled_back_in_place(model) -> None:
    weights = live(copy.deepcopy(model), is_in_place=True)
    base = weights.row
    fresh = changed(base, seed=4, share=0.02)
    commit = TileCommit(weights, fresh)
    while commit.step():
        pass
    assert np.array_equal(weights.row, fresh)
    commit.abandon()
    assert np.array_equal(weights.row, base)
    assert is_intact(weights)


def test_bits_of_a_tile_can_be_read_and_not_written(model) -> None:
    weights = LiveWeights(copy.deepcopy(model), tile_elements=TILE)
    tiles = [weights.bits(tile) for tile in range(weights.tiles)]
    assert np.array_equal(np.concatenate(tiles), weights.row)
    with pytest.raises(ValueError, match="read-only"):
        tiles[1][0] = 7
    assert weights.row.flags.writeable


def test_model_of_another_dtype_is_refused(model) -> None:
    with pytest.raises(InvalidArgument, match="float32"):
        LiveWeights(copy.deepcopy(model).bfloat16())
