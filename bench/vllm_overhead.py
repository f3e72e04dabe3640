"""Measures the CPU time that rose adds to vLLM alone: two engines by turns, in one thread.

Run by the Python of `make vllm-env`, with a model, a socket and a number of rounds. Prints JSON:
for each round the CPU seconds of rose, stock vLLM and rose again, and whether tokens were equal.
"""

import json
import os
import sys
import time
from typing import Any, Final

# Both engines run in this thread, so one process's CPU time is that of the engine that runs.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams

PROMPTS: Final = 8
TOKENS: Final = 200
WARM_UP_S: Final = 300.0


def engines(model: str, socket: str) -> tuple[LLM, LLM]:
    """Return an engine under rose, with nothing lent, and a stock one."""
    common: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 16,
        "block_size": 32,
        "kv_cache_memory_bytes": 64 << 20,
        "seed": 0,
        "distributed_executor_backend": "uni",
    }
    ours = LLM(
        **common,
        worker_cls="rose.engines.vllm.serving_engine.ServingWorker",
        scheduler_cls="rose.engines.vllm.serving_engine.LendingScheduler",
        async_scheduling=False,
        additional_config={
            "rose": {"listen": socket, "ttft_ms": 1000.0, "tpot_ms": 100.0, "epsilon": 0.02}
        },
    )
    return ours, LLM(**common)


def warm_up(engine: LLM) -> None:
    """Run the probes of a serving engine until they end."""
    core = engine.llm_engine.engine_core.engine_core
    end_s = time.monotonic() + WARM_UP_S
    while core.scheduler.has_requests() and time.monotonic() < end_s:
        core.step()


def run(engine: LLM) -> tuple[tuple[float, float], list[list[int]]]:
    """Return the CPU seconds of this thread and of the process for one batch, and its tokens."""
    prompts = [
        {"prompt_token_ids": [(one * 7 + place) % 256 for place in range(64)]}
        for one in range(PROMPTS)
    ]
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    began = time.thread_time(), time.process_time()
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    took = time.thread_time() - began[0], time.process_time() - began[1]
    return took, [list(answer.outputs[0].token_ids) for answer in answers]


def main() -> None:
    model, socket, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ours, stock = engines(model, socket)
    warm_up(ours)
    reference = run(stock)[1]
    are_equal = run(ours)[1] == reference
    figures: list[list[tuple[float, float]]] = []
    for _ in range(rounds):
        took = [run(engine) for engine in (ours, stock, ours)]
        are_equal = are_equal and all(tokens == reference for _, tokens in took)
        figures.append([seconds for seconds, _ in took])
    print(json.dumps({"rounds": figures, "steps": TOKENS, "are_equal": are_equal}), flush=True)
    os._exit(0)  # Two engines do not end in one process.


if __name__ == "__main__":
    main()
