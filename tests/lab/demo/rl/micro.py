"""Models that learn in seconds, and trajectories as a policy would say them."""

from collections.abc import Sequence

import numpy as np
import torch
import transformers

from rose_lab.demo.rl.trajectory import NOT_GENERATED, Trajectory

VOCABULARY = 128


def micro_model(seed: int = 0, *, is_tied: bool = True):
    """Build 2 layers of 64, in fp32."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=is_tied,
        attn_implementation="sdpa",
    )
    return transformers.Qwen3ForCausalLM(config).float().eval()


def logprobs_of(model, tokens: Sequence[int]) -> list[float]:
    """Return the logprob of each token after the first, 0.0 for the first."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
    rows = torch.log_softmax(logits[:-1].double(), dim=-1)
    return [0.0, *(float(rows[at, one]) for at, one in enumerate(tokens[1:]))]


def trajectory(
    number: int,
    said: Sequence[int],
    *,
    reward: float,
    group: int = 0,
    prompt: Sequence[int] = (2, 65, 66, 3),
    logprobs: Sequence[float] | None = None,
    version: int = 0,
) -> Trajectory:
    """Make a trajectory of one turn; without logprobs, one of a policy that knew nothing."""
    read = len(prompt)
    if logprobs is None:
        logprobs = [-float(np.log(VOCABULARY))] * len(said)
    return Trajectory(
        number=number,
        group=group,
        seed=5,
        environment="grid",
        tokens=(*prompt, *said),
        is_generated=(False,) * read + (True,) * len(said),
        logprobs=(0.0,) * read + tuple(logprobs),
        versions=(NOT_GENERATED,) * read + (version,) * len(said),
        reward=reward,
        turns=1,
    )
