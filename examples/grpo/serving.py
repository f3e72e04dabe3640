"""An engine that answers live traffic and lends the rest: `python serving.py SOCKET SEED`.

It prints a line when it is ready. After a line on stdin it sends requests to itself. Equal seeds
give equal requests at equal times, whether anything is lent or not. When its stdin closes, it
prints the latencies of all answered requests as JSON, and ends.
"""

import json
import random
import sys
import threading
import time
from typing import Any

import rose
from rose.engines.transformers import EngineConfig, Output, load_model

STOP_S = 60.0  # longest wait for the traffic to end
SLO = rose.SLO(ttft_ms=1000, tpot_ms=200)
REQUESTS_PER_S, PROMPT_TOKENS, NEW_TOKENS = 2.0, (16, 96), 12


class Traffic:
    """Sends requests until it is told to stop, and records when their tokens arrive."""

    def __init__(self, serving: rose.Attached, seed: int) -> None:
        self._serving = serving
        self._draw = random.Random(seed)
        self.times_s: list[list[float]] = []  # per request: time of arrival, then of each token

    def run(self, is_over: threading.Event) -> None:
        """Send one request after the other, without waiting for answers."""
        due_s = time.monotonic()
        while True:
            due_s += self._draw.expovariate(REQUESTS_PER_S)
            prompt = self._draw.choices(range(1, 1000), k=self._draw.randint(*PROMPT_TOKENS))
            if is_over.wait(max(0.0, due_s - time.monotonic())):
                return
            times_s = [time.monotonic()]
            self.times_s.append(times_s)

            def note(_: Output, times_s: list[float] = times_s) -> None:
                times_s.append(time.monotonic())

            name = f"request {len(self.times_s)}"
            self._serving.submit(name, prompt, max_new_tokens=NEW_TOKENS, on_output=note)

    def latencies(self) -> list[dict[str, Any]]:
        """Return each answered request's latencies, and whether it met its targets, by arrival."""
        rows = []
        for arrived_s, *tokens_s in self.times_s:
            if len(tokens_s) == NEW_TOKENS:
                ttft_ms = 1e3 * (tokens_s[0] - arrived_s)
                tpot_ms = 1e3 * (tokens_s[-1] - tokens_s[0]) / (NEW_TOKENS - 1)
                is_met = ttft_ms <= SLO.ttft_ms and tpot_ms <= SLO.tpot_ms
                rounded = {"ttft_ms": round(ttft_ms, 1), "tpot_ms": round(tpot_ms, 1)}
                rows.append({**rounded, "is_met": is_met})
        return rows


def main(path: str, seed: int) -> None:
    """Serve until stdin closes."""
    config = EngineConfig(max_batch_tokens=64)
    # A run takes a minute, so measuring steps for certificates must take only seconds. Certificates
    # may therefore err in one step of 20. A borrower that is stopped within a segment delays a step
    # by park_wait_ms, which must be well below the TTFT target.
    policy = rose.Policy(epsilon=0.05, park_wait_ms=200)
    with rose.open("cpu", slo=SLO, pool_bytes=64 << 20, policy=policy) as device:
        model = load_model("tiny-qwen2", seed=1)
        serving = rose.attach(
            model, device=device, role="serving", config=config, request_tokens=256
        )
        serving.start()
        device.listen(path)
        print("ready", flush=True)
        sys.stdin.readline()
        traffic, is_over = Traffic(serving, seed), threading.Event()
        sending = threading.Thread(target=traffic.run, args=(is_over,))
        sending.start()
        sys.stdin.read()
        is_over.set()
        sending.join(STOP_S)
        serving.stop()
        print(json.dumps({"gave_back": device.gave_back, "requests": traffic.latencies()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
