"""Two engines of transformers on one device: serving answers requests, the borrower rolls out.

The models are small and have random weights; any causal language model of transformers will do.
`python examples/attach.py` takes about half a minute: serving first measures its largest steps,
and only then lending begins.
"""

from queue import SimpleQueue

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rose
from rose.engines.transformers import EngineConfig, Output

VOCAB = 1000
WAIT_S = 120  # longest wait for an answer


def model(layers: int) -> LlamaForCausalLM:
    """Make a small model."""
    torch.manual_seed(layers)
    shape = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(shape).eval()


def generate(
    engine: rose.Attached, name: str, prompt: list[int], tokens: int, ended: SimpleQueue
) -> None:
    """Queue a request; when it ends, its name and its tokens are put into `ended`."""

    def note(output: Output) -> None:
        if output.is_finished():
            ended.put((name, list(output.generated_tokens)))

    engine.submit(name, prompt, max_new_tokens=tokens, on_output=note)


def main() -> None:
    """Serve ten requests, one after the other, beside four rollouts."""
    slo, config = rose.SLO(ttft_ms=2000, tpot_ms=200), EngineConfig(max_batch_tokens=64)
    answers: SimpleQueue = SimpleQueue()
    rollouts: SimpleQueue = SimpleQueue()
    with rose.open("cpu", slo=slo, pool_bytes=1 << 30) as device:  # or "cuda:0"
        serving, borrower = (
            rose.attach(model(layers), device=device, role=role, config=config, request_tokens=256)
            for layers, role in ((2, "serving"), (4, "borrower"))
        )
        serving.start()
        borrower.start()
        for number in range(4):
            generate(borrower, f"rollout {number}", [number, 1, 2], 32, rollouts)
        for number in range(10):
            generate(serving, f"request {number}", [number, 3, 5, 8], 8, answers)
            answers.get(timeout=WAIT_S)
        done = dict(rollouts.get(timeout=WAIT_S) for _ in range(4))
        print(f"{sum(map(len, done.values()))} rollout tokens beside 10 answers;", end=" ")
        print(f"why rose gave back: {device.gave_back}")
        borrower.stop()
        serving.stop()


if __name__ == "__main__":
    main()
