"""The parameters of one Megatron-Core rank, and the checkpoint tensors that each contains."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rose.engines.shards.look import row_major
from rose.transfer.plan import LocalView, Piece, Region, TensorSpec

if TYPE_CHECKING:
    from rose.engines.shards.megatron import MegatronModel


class MegatronRank:
    """Lays out the parameters of a rank, one by one.

    Args:
        model: model and its distribution.
        specs: tensors of the checkpoint, by name.
        stage: index of the pipeline stage.
        group: index of the expert group.
        part: index of the tensor parallel rank.
    """

    def __init__(
        self,
        model: "MegatronModel",
        specs: Mapping[str, TensorSpec],
        *,
        stage: int,
        group: int,
        part: int,
    ) -> None:
        self.rank = (stage * model.ep + group) * model.tp + part
        self.pieces: list[Piece] = []
        self.storages: dict[str, int] = {}
        self.padding: dict[str, int] = {}
        self._model = model
        self._specs = specs
        self._stage = stage
        self._group = group
        self._part = part

    def lay_out(self) -> None:
        """Place all tensors of this rank's stage."""
        layers = self._model.stage_layers
        is_last = self._stage == len(layers) - 1
        if self._stage == 0:
            self._embedding("model.embed_tokens.weight", "embedding.word_embeddings.weight")
        first = sum(layers[: self._stage])
        for at in range(layers[self._stage]):
            self._layer(f"model.layers.{first + at}", f"decoder.layers.{at}")
        if is_last:
            self._whole("model.norm.weight", "decoder.final_layernorm.weight")
        # A tied output layer has its own copy if the embedding is on another stage.
        if is_last and not self._model.is_tied:
            self._embedding("lm_head.weight", "output_layer.weight")
        elif is_last and self._stage > 0:
            self._embedding("model.embed_tokens.weight", "output_layer.weight")

    def _layer(self, of: str, to: str) -> None:
        attention = f"{to}.self_attention"
        self._whole(f"{of}.input_layernorm.weight", f"{attention}.linear_qkv.layer_norm_weight")
        self._qkv(f"{of}.self_attn", f"{attention}.linear_qkv", "weight")
        if self._model.has_qkv_bias:
            self._qkv(f"{of}.self_attn", f"{attention}.linear_qkv", "bias")
        if self._model.has_qk_norm:
            for name in "qk":
                self._whole(
                    f"{of}.self_attn.{name}_norm.weight", f"{attention}.{name}_layernorm.weight"
                )
        self._columns(f"{of}.self_attn.o_proj.weight", f"{attention}.linear_proj.weight")
        norm = f"{of}.post_attention_layernorm.weight"
        if self._model.experts:
            self._whole(norm, f"{to}.pre_mlp_layernorm.weight")
            self._whole(f"{of}.mlp.gate.weight", f"{to}.mlp.router.weight")
            self._experts(f"{of}.mlp.experts", f"{to}.mlp.experts")
        else:
            self._whole(norm, f"{to}.mlp.linear_fc1.layer_norm_weight")
            self._perceptron(f"{of}.mlp", f"{to}.mlp", ".weight", at=0)

    def _qkv(self, of: str, to: str, kind: str) -> None:
        """Place queries, keys and values: group by group, queries first."""
        model = self._model
        groups = model.kv_heads // model.tp
        queries = model.heads // model.kv_heads * model.head
        width = model.hidden if kind == "weight" else 1
        at = 0
        for group in range(self._part * groups, (self._part + 1) * groups):
            for name, rows in (("q", queries), ("k", model.head), ("v", model.head)):
                self._rows(f"{of}.{name}_proj.{kind}", f"{to}.{kind}", group * rows, rows, at)
                at += rows * width

    def _experts(self, of: str, to: str) -> None:
        model = self._model
        each = model.experts // model.ep
        for at in range(each):
            expert = f"{of}.{self._group * each + at}"
            if model.are_experts_stacked:
                self._perceptron(expert, to, ".weight", at=at)
            else:
                self._perceptron(expert, to, f".weight{at}", at=0)

    def _perceptron(self, of: str, to: str, suffix: str, *, at: int) -> None:
        """Place a gated MLP; `at` is its index in a parameter that holds several MLPs, else 0."""
        rows = self._model.ffn // self._model.tp
        size = rows * self._model.hidden
        first = f"{to}.linear_fc1{suffix}"
        for half, name in enumerate(("gate_proj", "up_proj")):
            offset = (2 * at + half) * size
            self._rows(f"{of}.{name}.weight", first, self._part * rows, rows, offset)
        self._columns(f"{of}.down_proj.weight", f"{to}.linear_fc2{suffix}", at=at * size)

    def _embedding(self, of: str, to: str) -> None:
        """Place a slice of the vocabulary; the last slices may contain padding."""
        model = self._model
        rows = model.padded_vocabulary // model.tp
        first = self._part * rows
        held = min(max(model.vocabulary - first, 0), rows)
        if held:
            self._rows(of, to, first, held, 0)
        if held < rows:
            self.padding[to] = (rows - held) * model.hidden
            self.storages[to] = rows * model.hidden

    def _whole(self, of: str, to: str) -> None:
        self._rows(of, to, 0, self._specs[of].shape[0], 0)

    def _rows(self, of: str, to: str, first: int, count: int, at: int) -> None:
        """Place rows of a tensor, starting at element `at` of a parameter."""
        rest = self._specs[of].shape[1:]
        region = Region((first, *(0 for _ in rest)), (count, *rest))
        self._place(of, region, LocalView(to, at, row_major(region.shape)))

    def _columns(self, of: str, to: str, at: int = 0) -> None:
        """Place this rank's columns of a matrix, starting at element `at` of a parameter."""
        rows, columns = self._specs[of].shape
        count = columns // self._model.tp
        region = Region((0, self._part * count), (rows, count))
        self._place(of, region, LocalView(to, at, (count, 1)))

    def _place(self, of: str, region: Region, view: LocalView) -> None:
        self.pieces.append(Piece(of, region, self.rank, view))
        end = view.offset + math.prod(region.shape)
        self.storages[view.parameter] = max(self.storages.get(view.parameter, 0), end)
