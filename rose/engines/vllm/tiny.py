"""Tiny models with random weights, to try vLLM on a machine without a model hub."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_CHAT = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}assistant:"


def make_model(path: Path, *, layers: int, hidden: int, seed: int) -> Path:
    """Save a Llama with random weights and a tokenizer of bytes at `path`, and return `path`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.2,  # So large that the most likely token is far from the next.
        eos_token_id=256,
        bos_token_id=257,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(path)
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<bos>"]
    tokenizer = Tokenizer(
        models.BPE(vocab={one: place for place, one in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<bos>")
    fast.chat_template = _CHAT
    fast.save_pretrained(path)
    return path
