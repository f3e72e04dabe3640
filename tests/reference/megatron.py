"""A checkpoint over the ranks of Megatron-Core, by really cutting and fusing its arrays."""

import numpy as np


def _cut(array: np.ndarray, parts: int, axis: int) -> list[np.ndarray]:
    return np.split(array, parts, axis=axis)


def ranks_of(model, tensors: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the parameters of every rank; rows of no token are 0."""
    layers = [
        {name.split(".", 3)[3]: one for name, one in tensors.items() if name.split(".")[:3] == key}
        for key in (["model", "layers", str(at)] for at in range(sum(model.stage_layers)))
    ]
    ranks = []
    for stage, count in enumerate(model.stage_layers):
        first = sum(model.stage_layers[:stage])
        for group in range(model.ep):
            for part in range(model.tp):
                held = {}
                for at, layer in enumerate(layers[first : first + count]):
                    for name, one in layer_of(model, layer, group, part).items():
                        held[f"decoder.layers.{at}.{name}"] = one
                held |= ends_of(model, tensors, stage, part)
                ranks.append(held)
    return ranks


def ends_of(model, tensors, stage: int, part: int) -> dict[str, np.ndarray]:
    held = {}
    is_last = stage == len(model.stage_layers) - 1
    embedding = padded(model, tensors["model.embed_tokens.weight"])[part]
    if stage == 0:
        held["embedding.word_embeddings.weight"] = embedding
    if is_last:
        held["decoder.final_layernorm.weight"] = tensors["model.norm.weight"]
        if "lm_head.weight" in tensors:
            held["output_layer.weight"] = padded(model, tensors["lm_head.weight"])[part]
        elif stage:
            held["output_layer.weight"] = embedding
    return held


def padded(model, rows: np.ndarray) -> list[np.ndarray]:
    whole = list(rows)
    while len(whole) % (model.vocabulary_multiple * model.tp):
        whole.append(np.zeros_like(rows[0]))
    return _cut(np.stack(whole), model.tp, 0)


def layer_of(model, layer, group: int, part: int) -> dict[str, np.ndarray]:
    held = {"self_attention.linear_qkv.layer_norm_weight": layer["input_layernorm.weight"]}
    for kind in ("weight", "bias") if model.has_qkv_bias else ("weight",):
        queries = _cut(layer[f"self_attn.q_proj.{kind}"], model.kv_heads, 0)
        keys = _cut(layer[f"self_attn.k_proj.{kind}"], model.kv_heads, 0)
        values = _cut(layer[f"self_attn.v_proj.{kind}"], model.kv_heads, 0)
        fused = [np.concatenate(of_group) for of_group in zip(queries, keys, values, strict=True)]
        held[f"self_attention.linear_qkv.{kind}"] = _cut(np.concatenate(fused), model.tp, 0)[part]
    if model.has_qk_norm:
        held["self_attention.q_layernorm.weight"] = layer["self_attn.q_norm.weight"]
        held["self_attention.k_layernorm.weight"] = layer["self_attn.k_norm.weight"]
    o_proj = layer["self_attn.o_proj.weight"]
    held["self_attention.linear_proj.weight"] = _cut(o_proj, model.tp, 1)[part]
    norm = layer["post_attention_layernorm.weight"]
    if not model.experts:
        held["mlp.linear_fc1.layer_norm_weight"] = norm
        first, second = perceptron(model, layer, "mlp", part)
        return held | {"mlp.linear_fc1.weight": first, "mlp.linear_fc2.weight": second}
    held |= {"pre_mlp_layernorm.weight": norm, "mlp.router.weight": layer["mlp.gate.weight"]}
    mine = np.split(np.arange(model.experts), model.ep)[group]
    both = [perceptron(model, layer, f"mlp.experts.{expert}", part) for expert in mine]
    for name, stack in zip(("linear_fc1", "linear_fc2"), zip(*both, strict=True), strict=True):
        if model.are_experts_stacked:
            held[f"mlp.experts.{name}.weight"] = np.stack(stack)
        else:
            held |= {f"mlp.experts.{name}.weight{at}": one for at, one in enumerate(stack)}
    return held


def perceptron(model, layer, prefix: str, part: int) -> tuple[np.ndarray, np.ndarray]:
    gate = _cut(layer[f"{prefix}.gate_proj.weight"], model.tp, 0)[part]
    up = _cut(layer[f"{prefix}.up_proj.weight"], model.tp, 0)[part]
    down = _cut(layer[f"{prefix}.down_proj.weight"], model.tp, 1)[part]
    return np.concatenate([gate, up]), down
