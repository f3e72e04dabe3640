"""The serving engine against a plain account of what each request has had."""

from hypothesis import given
from hypothesis import strategies as st

from rose_lab.sim import DeviceModel, Request
from rose_lab.sim.engine import ServingEngine

DEVICE = DeviceModel(chunk_tokens=32, batch_max=4)
LENGTHS = st.tuples(st.integers(1, 90), st.integers(1, 6))


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=9), admit_at=st.lists(st.integers(0, 12)))
def test_the_engine_agrees_with_a_plain_account(lengths, admit_at) -> None:
    requests = [Request(0.0, prompt, output) for prompt, output in lengths]
    engine = ServingEngine(requests, DEVICE)
    step_of = sorted([*admit_at, *[0] * len(requests)][: len(requests)])
    prefilled = [0] * len(requests)
    given_out = [0] * len(requests)
    admitted = step = 0
    while admitted < len(requests) or engine.has_work():
        while admitted < len(requests) and step_of[admitted] <= step:
            engine.admit(admitted)
            admitted += 1
        step += 1
        if not engine.has_work():
            continue
        decoding = [n for n in range(admitted) if 0 < given_out[n] < requests[n].output_tokens]
        waiting = [n for n in range(admitted) if given_out[n] == 0]
        work = engine.plan()
        assert (engine.running, engine.waiting) == (len(decoding), len(waiting))
        assert work.decode_sequences == len(decoding) <= DEVICE.batch_max
        assert work.decode_sequences + work.prefill_tokens <= DEVICE.chunk_tokens
        done = prefilled[waiting[0]] if work.prefill_tokens else 0
        context = sum(requests[n].prompt_tokens + given_out[n] - 1 for n in decoding)
        assert (work.context_tokens, work.prefill_context_tokens) == (context + done, done)
        if waiting and len(decoding) < DEVICE.batch_max:
            prefilled[waiting[0]] += work.prefill_tokens
            assert work.prefill_tokens > 0
        else:
            assert work.prefill_tokens == 0
        for n in decoding:
            given_out[n] += 1
        if waiting and prefilled[waiting[0]] == requests[waiting[0]].prompt_tokens:
            given_out[waiting[0]] = 1
            decoding.append(waiting[0])
        emitted = engine.copy().complete(work)
        assert engine.complete(work) == emitted
        assert emitted.tokens == decoding
        ended = [n for n in decoding if given_out[n] == requests[n].output_tokens]
        assert emitted.finished == ended
    assert given_out == [request.output_tokens for request in requests]
    assert prefilled == [request.prompt_tokens for request in requests]
