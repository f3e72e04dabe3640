"""Engines with the right bits that compute something else are found by their log-probabilities."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.attestation import BOUND, attest

BF16 = torch.bfloat16
PREFIX = 16


def model(*, theta: float = 1e4, seed: int = 0, kernel: str = "sdpa") -> LlamaForCausalLM:
    """Return a small model with large weights, so that it prefers some tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, initializer_range=0.2, rope_theta=theta,
        attn_implementation=kernel,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


RIGHT = model()


def logprobs(of: LlamaForCausalLM, tokens: Sequence[int], cache: Any = None) -> torch.Tensor:
    known = 0 if cache is None else cache.get_seq_length()
    with torch.no_grad():
        logits = of(torch.tensor([tokens[known:]]), past_key_values=cache).logits[0]
    picked = logits.float().log_softmax(-1)[:-1]
    return picked.gather(1, torch.tensor(tokens[known + 1 :])[:, None])[:, 0]


def scorer(of: LlamaForCausalLM) -> Callable[[Sequence[int]], list[float]]:
    return lambda tokens: logprobs(of, tokens).tolist()


def sampled(count: int, length: int = 48) -> list[list[int]]:
    torch.manual_seed(1)
    rows = torch.randint(0, 256, (count, 1))
    with torch.no_grad():
        while rows.shape[1] < length:
            shares = RIGHT(rows).logits[:, -1].softmax(-1)
            rows = torch.cat([rows, torch.multinomial(shares, 1)], 1)
    return rows.tolist()


GOLDEN = sampled(4)


def with_stale_prefix(tokens: Sequence[int]) -> list[float]:
    """Score with KV of the first tokens that other weights made."""
    cache = DynamicCache()
    with torch.no_grad():
        model(seed=5).to(BF16)(torch.tensor([tokens[:PREFIX]]), past_key_values=cache)
    right = model().to(BF16)
    return [*logprobs(right, tokens[: PREFIX + 1]), *logprobs(right, tokens, cache)]


def test_wrong_numerics_are_named_and_right_ones_are_not() -> None:
    scaled = model().to(BF16)
    with torch.no_grad():
        scaled.model.layers[0].mlp.down_proj.weight.mul_(2)
    engines = {
        "bf16": scorer(model().to(BF16)),
        "eager": scorer(model(kernel="eager").to(BF16)),
        "rope": scorer(model(theta=5e5).to(BF16)),
        "scale": scorer(scaled),
        "stale KV": with_stale_prefix,
    }
    found = attest(GOLDEN, scorer(RIGHT), engines)
    assert {name for name, one in found.items() if not one.is_right} == {
        "rope", "scale", "stale KV",
    }  # fmt: skip
    assert max(found["bf16"].mean, found["eager"].mean) < BOUND / 2
    assert "compare RoPE, scales and dtypes" in str(found["rope"].reason)


def test_engines_without_an_answer_are_not_right() -> None:
    def away(_tokens: Sequence[int]) -> list[float]:
        raise Unavailable("planted: it is away")

    engines = {"away": away, "short": lambda _: [0.0], "nan": lambda row: [math.nan] * len(row[1:])}
    found = attest(GOLDEN[:1], [[0.0] * 47], engines)
    assert not any(one.is_right for one in found.values())
    assert found["away"].reason == "planted: it is away"
    assert "47 finite log-probabilities, got 1, of which 1" in str(found["short"].reason)
    assert "got 47, of which 0" in str(found["nan"].reason)


def test_arguments_out_of_range_are_refused() -> None:
    for golden, reference, bound in (
        ([], [], 1.0), ([[1]], [[]], 1.0), ([[1, 2]], [[0.0]], 0.0), ([[1, 2]], [[]], 1.0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            attest(golden, reference, {}, bound=bound)


class Server(ThreadingHTTPServer):
    """Answers `/v1/completions` as vLLM does, and keeps KV of prompts as its prefix cache does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Route)
        self.model = model().to(BF16)
        self.is_stale = False
        self.headers_seen: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        if "prompt_logprobs" in body:
            scores = logprobs(self.model, prompt).tolist()
            rows = zip(prompt[1:], scores, strict=True)
            return {"prompt_logprobs": [None, *({str(t): {"logprob": s}} for t, s in rows)]}
        whole = [*prompt, *body["allowed_token_ids"]]
        scores = with_stale_prefix(whole) if self.is_stale else logprobs(self.model, whole).tolist()
        return {"logprobs": {"token_logprobs": [float(scores[-1])]}}


class _Route(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.headers_seen.append(self.headers.get("authorization", ""))
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = json.dumps({"choices": [self.server.choice(body)]}).encode()
        self.send_response(200 if self.path == "/v1/completions" else 404)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.shutdown()


def test_servers_are_asked_by_the_route_of_vllm(server: Server) -> None:
    address = f"http://127.0.0.1:{server.server_port}"
    engines = {"right": address, "other route": address + "/x", "away": "http://127.0.0.1:1"}
    found = attest(GOLDEN, scorer(RIGHT), engines, headers={"authorization": "Bearer key"})
    assert [one.is_right for one in found.values()] == [True, False, False]
    assert "does not answer" in str(found["away"].reason)
    assert set(server.headers_seen) == {"Bearer key"}
    server.is_stale = True
    found = attest(GOLDEN, scorer(RIGHT), {"stale": address})
    assert not found["stale"].is_right


def test_an_engine_that_raises_is_not_right_and_the_others_are_judged() -> None:
    def broken(_tokens: object) -> list[float]:
        raise ZeroDivisionError("planted")

    found = attest([[1, 2, 3]], [[-1.0, -2.0]], {"broken": broken, "right": lambda _: [-1.0, -2.0]})
    assert (found["broken"].is_right, found["broken"].reason) == (False, "planted")
    assert found["right"].is_right


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_reference_that_is_no_number_judges_nobody(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="finite log-probabilities"):
        attest([[1, 2, 3]], [[-1.0, bad]], {"one": lambda _: [-1.0, -2.0]})
