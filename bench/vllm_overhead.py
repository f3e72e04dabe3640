"""Measures the CPU time that rose adds to each step of vLLM, with three engines in one thread.

Run by the Python of `make vllm-env`, with a model, a socket and a number of rounds. The engines
take their steps alternately, in random order: rose with nothing lent, stock vLLM, and stock vLLM
again as the control. Prints progress on stderr, and JSON on stdout: a line of figures per round.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

# All engines run in this thread, so its CPU time is that of the engine that runs.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams
from vllm.v1.request import Request

SEQUENCES: Final = 8
TOKENS: Final = 200
WARM_UP_S: Final = 300.0
PROMPTS: Final = [[(one * 7 + place) % 256 for place in range(64)] for one in range(SEQUENCES)]


@dataclass
class Spent:
    """CPU time of this thread in one engine, in nanoseconds.

    Args:
        books: scheduling, accounting and zeroing of blocks: all calls in which rose has code.
        all: complete steps. The address of the KV memory changes the model's part by some percent.
    """

    books: int = 0
    all: int = 0


class Engine:
    """An engine core in this process, with the CPU time of its steps."""

    def __init__(self, model: str, **options: Any) -> None:
        self._llm = LLM(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_batched_tokens=256,
            max_num_seqs=16,
            block_size=32,
            kv_cache_memory_bytes=64 << 20,
            seed=0,
            distributed_executor_backend="uni",
            **options,
        )
        self.core: Any = self._llm.llm_engine.engine_core.engine_core
        self.spent = Spent()
        self.tokens: dict[str, list[int]] = {}
        runner = self.core.model_executor.driver_worker.worker.model_runner
        for owner, name in (
            (self.core.scheduler, "has_requests"),
            (self.core.scheduler, "schedule"),
            (self.core.scheduler, "update_from_output"),
            (self.core.scheduler, "add_request"),
            (runner, "_zero_block_ids"),
        ):
            self._time(owner, name)

    def _time(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            began_ns = time.thread_time_ns()
            try:
                return function(*args, **options)
            finally:
                self.spent.books += time.thread_time_ns() - began_ns

        setattr(owner, name, timed)

    def warm_up(self) -> None:
        """Run probes until they end."""
        end_s = time.monotonic() + WARM_UP_S
        while self.core.scheduler.has_requests() and time.monotonic() < end_s:
            self.core.step()

    def begin(self, number: int) -> None:
        """Add the requests of a round."""
        self.spent, self.tokens = Spent(), {}
        for place, prompt in enumerate(PROMPTS):
            began_ns = time.thread_time_ns()
            self.core.add_request(
                Request(
                    request_id=f"{number}-{place}",
                    prompt_token_ids=prompt,
                    sampling_params=SamplingParams(
                        temperature=0.0, max_tokens=TOKENS, ignore_eos=True
                    ),
                    pooling_params=None,
                    block_hasher=self.core.request_block_hasher,
                )
            )
            self.spent.all += time.thread_time_ns() - began_ns

    def step(self) -> None:
        began_ns = time.thread_time_ns()
        outputs, _ = self.core.step()
        self.spent.all += time.thread_time_ns() - began_ns
        for client in outputs.values():
            for one in client.outputs:
                self.tokens.setdefault(one.request_id, []).extend(one.new_token_ids)


def run_round(engines: list[Engine], number: int, order: random.Random) -> None:
    """Give each engine the same requests, and run every step on all engines in turn."""
    for engine in engines:
        engine.begin(number)
    while any(engine.core.scheduler.requests for engine in engines):
        for engine in order.sample(engines, len(engines)):
            engine.step()


def main() -> None:
    model, socket, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    settings = {"listen": socket, "ttft_ms": 1000.0, "tpot_ms": 100.0, "epsilon": 0.02}
    ours = Engine(
        model,
        worker_cls="rose.engines.vllm.serving_engine.ServingWorker",
        scheduler_cls="rose.engines.vllm.serving_engine.LendingScheduler",
        async_scheduling=False,
        additional_config={"rose": settings},
    )
    engines = [ours, Engine(model), Engine(model)]
    ours.warm_up()
    order = random.Random(0)
    run_round(engines, 0, order)
    reference = [len(one) for one in ours.tokens.values()]
    are_equal = reference == [TOKENS] * SEQUENCES
    for number in range(1, rounds + 1):
        run_round(engines, number, order)
        are_equal = are_equal and all(one.tokens == ours.tokens for one in engines)
        print(json.dumps([asdict(one.spent) for one in engines]), flush=True)
        print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)
    print(json.dumps({"steps": TOKENS, "are_equal": are_equal}), flush=True)
    os._exit(0)  # A process with several engines does not end by itself.


if __name__ == "__main__":
    main()
