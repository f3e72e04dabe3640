"""The largest batch of a borrower, run once before its arena of activations is sealed."""

import threading
from collections.abc import Sequence

from transformers.generation.continuous_batching.requests import RequestStatus

from rose.engines.torch_arena import ActivationArena, ArenaState
from rose.engines.transformers.engine import Engine
from rose.engines.transformers.outputs import Output
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.units import MS_PER_S, ceil_div


def warm_up(
    engine: Engine,
    arena: ActivationArena,
    *,
    requests: int,
    context_tokens: int,
    timeout_ms: float,
) -> None:
    """Run `requests` requests at once, up to `context_tokens` tokens each, then seal the arena.

    From then on a step that needs more device memory fails. Leased weights become active for the
    warm-up, as for any request. Call this function after the engine's start and before other work,
    from any thread except the engine's.

    Args:
        engine: a borrower's engine.
        arena: arena of the engine, not sealed yet.
        requests: largest number of concurrent requests.
        context_tokens: length of the longest request, prompt and answer.
        timeout_ms: longest duration; needed because serving may leave no time or memory.

    Raises:
        InvalidArgument: such a batch is impossible, or the arena is sealed.
        DeadlineExceeded: the warm-up did not finish in time; the arena is not sealed.
        Unavailable: a request failed, for instance because the arena is too small; the arena is
            not sealed.
    """
    if arena.state is not ArenaState.WARMING:
        raise InvalidArgument("the arena is sealed already: it cannot be warmed up again")
    if requests < 1:
        raise InvalidArgument(f"a warm-up needs at least 1 request, got {requests}")
    prompts, answer_tokens = _batch(engine, requests=requests, context_tokens=context_tokens)
    ends = _run(engine, prompts, answer_tokens, timeout_ms)
    for end in ends:
        if end.status != RequestStatus.FINISHED:
            raise Unavailable(f"the warm-up failed: {end.error}") from end.failure
    engine.pause()  # A step in preparation could enlarge the arena while `seal` reads its size.
    try:
        arena.seal()
    finally:
        engine.resume()


def _batch(engine: Engine, *, requests: int, context_tokens: int) -> tuple[list[list[int]], int]:
    """Return prompts without common prefixes, and enough answer tokens that all decode together."""
    step_tokens = int(engine.processor.cache.max_batch_tokens)
    answer_tokens = ceil_div(requests * context_tokens, step_tokens) + 2
    prompt_tokens = context_tokens - answer_tokens
    if prompt_tokens < 1:
        raise InvalidArgument(
            f"{requests} requests of {context_tokens} tokens cannot decode in one batch: lower "
            "requests, or raise context_tokens or max_batch_tokens"
        )
    vocabulary = int(engine.manager.model.config.get_text_config().vocab_size)
    prompts = [
        [(one + place) % vocabulary for place in range(prompt_tokens)] for one in range(requests)
    ]
    return prompts, answer_tokens


def _run(
    engine: Engine, prompts: Sequence[list[int]], answer_tokens: int, timeout_ms: float
) -> list[Output]:
    """Run all prompts and return their last outputs."""
    done = threading.Condition()  # Guards `ends`.
    ends: list[Output] = []

    def on_output(output: Output) -> None:
        if output.is_finished():
            with done:
                ends.append(output)
                done.notify_all()

    names = [f"warm-up-{one}" for one in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        engine.submit(name, prompt, max_new_tokens=answer_tokens, on_output=on_output)
    with done:
        is_over = done.wait_for(lambda: len(ends) == len(prompts), timeout_ms / MS_PER_S)
    if is_over:
        return ends
    for name in names:
        engine.cancel(name)
    raise DeadlineExceeded(
        f"the warm-up of {len(prompts)} requests did not finish within {timeout_ms:g} ms"
    )
