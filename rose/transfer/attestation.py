"""Attestation: engines compute the log-probabilities of known sequences, as the trainer does.

A digest shows that an engine has the right bits. It does not show that the engine computes with
them: a wrong RoPE base, scale, or KV cache of older weights gives other tokens from the right bits.
"""

import json
import math
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from rose.errors import InvalidArgument, Unavailable, sentence
from rose.thread import ThreadPool

# Returns the log-probability of each token but the first, given the tokens before it, in nats.
Scorer: TypeAlias = Callable[[Sequence[int]], Sequence[float]]

# Mean difference per token, in nats. Three times that of bf16 to fp32 in a model with large weights
# (0.03; between two kernels of bf16 0.02; a wrong RoPE base gave 1.3, a doubled scale 0.39).
BOUND: Final = 0.1
# Difference of one token that is allowed, as a multiple of the bound: rare tokens scatter more.
TOKEN_FACTOR: Final = 10.0
_THREADS: Final = 16
_ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Attestation:
    """Verdict on an engine, from its log-probabilities.

    Args:
        is_right: whether the log-probabilities equal the trainer's within the bound.
        mean: mean difference per token of the worst sequence, in nats; infinite without an answer.
        worst: largest difference of one token, in nats.
        reason: why the engine is not right, one sentence; None if it is.
    """

    is_right: bool
    mean: float
    worst: float
    reason: str | None = None


def attest(
    golden: Sequence[Sequence[int]],
    reference: Scorer | Sequence[Sequence[float]],
    engines: Mapping[str, Scorer | str],
    *,
    bound: float = BOUND,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Attestation]:
    """Compare the log-probabilities of engines with those of the trainer, after a commit.

    An engine that does not answer, or answers with other than finite numbers, is not right. Stop
    sending turns to engines that are not right; the result names them.

    Args:
        golden: token ids of some sequences, at least two each. Good are 8 to 32 sequences of 64 to
            512 tokens which the model itself has sampled.
        reference: the trainer's function, or its log-probabilities of each sequence, for the same
            weights as the engines' version.
        engines: name → function, or address of an HTTP server with vLLM's route `/v1/completions`:
            http or https, host and port.
        bound: allowed mean difference per token, in nats. It must exceed the noise between right
            engines: take three times the `mean` of engines that are known to be right.
        headers: HTTP headers for the servers, such as an authorisation.

    Raises:
        InvalidArgument: there is no sequence, one is too short, the bound is not above 0, or the
            reference has another number of values.
    """
    if not golden or any(len(tokens) < 2 for tokens in golden):
        raise InvalidArgument("golden must have at least one sequence, each of at least 2 tokens")
    if not 0 < bound < math.inf:
        raise InvalidArgument(f"bound {bound} must be a number above 0")
    known = [reference(tokens) for tokens in golden] if callable(reference) else list(reference)
    if [len(row) for row in known] != [len(tokens) - 1 for tokens in golden]:
        raise InvalidArgument(
            "the reference must have one log-probability for each token but the first of each "
            "sequence"
        )
    if not all(math.isfinite(one) for row in known for one in row):
        raise InvalidArgument("the reference must have finite log-probabilities")
    scorers = {
        name: partial(scored_by_server, one, headers=headers or {}) if isinstance(one, str) else one
        for name, one in engines.items()
    }
    pool = ThreadPool(_THREADS, "rose-attest")
    asked = {
        name: pool.submit(_attested, one, golden, known, bound) for name, one in scorers.items()
    }
    try:
        return {name: _verdict(future) for name, future in asked.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def _verdict(future: Future[Attestation]) -> Attestation:
    """Return an engine's result; an engine that raised is not right."""
    error = future.exception()
    if error is not None:
        return Attestation(False, math.inf, math.inf, sentence(error))
    return future.result()


def _attested(
    scorer: Scorer,
    golden: Sequence[Sequence[int]],
    known: Sequence[Sequence[float]],
    bound: float,
) -> Attestation:
    mean = worst = 0.0
    for at, (tokens, expected) in enumerate(zip(golden, known, strict=True)):
        found = [float(one) for one in scorer(tokens)]
        if len(found) != len(expected) or not all(map(math.isfinite, found)):
            reason = (
                f"sequence {at} must have {len(expected)} finite log-probabilities, got "
                f"{len(found)}, of which {sum(map(math.isfinite, found))} are finite"
            )
            return Attestation(False, math.inf, math.inf, reason)
        apart = [abs(one - other) for one, other in zip(found, expected, strict=True)]
        mean, worst = max(mean, sum(apart) / len(apart)), max(worst, *apart)
    if mean <= bound and worst <= TOKEN_FACTOR * bound:
        return Attestation(True, mean, worst)
    reason = (
        f"its log-probabilities differ by {mean:.3g} nats per token, and by {worst:.3g} for one "
        f"token; allowed are {bound:.3g} and {TOKEN_FACTOR * bound:.3g}: compare RoPE, scales and "
        "dtypes with the trainer's, and drop KV of older weights"
    )
    return Attestation(False, mean, worst, reason)


def scored_by_server(
    address: str, tokens: Sequence[int], *, headers: Mapping[str, str]
) -> list[float]:
    """Return a server's log-probabilities by the route of vLLM.

    One request returns those of the prompt, which the server computes anew. A second one returns
    that of the last token as a continuation, so that KV of the server's prefix cache takes part.

    Raises:
        Unavailable: the server does not answer, or answers in another form.
    """
    ask = partial(_completion, address, headers)
    shared = {"max_tokens": 1, "temperature": 0.0}
    try:
        prompt = ask({"prompt": list(tokens), "prompt_logprobs": 0, **shared})["prompt_logprobs"]
        last = ask(
            {
                "prompt": list(tokens[:-1]),
                "allowed_token_ids": [tokens[-1]],
                "logprobs": 0,
                **shared,
            }
        )["logprobs"]["token_logprobs"][0]
        rows = zip(prompt[1:-1], tokens[1:-1], strict=True)  # the first token has none
        return [*(float(row[str(token)]["logprob"]) for row, token in rows), float(last)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unavailable(
            f"{address} did not answer with log-probabilities as vLLM does: {error!r}"
        ) from error


def _completion(address: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address.rstrip('/')}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return json.load(answer)["choices"][0]
    except OSError as error:
        raise Unavailable(f"{address} does not answer: {error}") from error
