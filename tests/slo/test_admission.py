"""A certificate means that what it counts on fits, and a refusal that it might not."""

from hypothesis import assume, given
from hypothesis import strategies as st

from rose._core import (
    AdmissionTerms,
    admission_balance,
    admission_certificate,
    largest_grant,
)
from tests.reference.slo import (
    ServingMemory,
    events_within,
    prompts_within,
    worst_horizon_fits,
)

KNOWN = st.fixed_dictionaries(
    {
        "blocks_per_slab": st.integers(1, 9),
        "block_tokens": st.integers(1, 33),
        "free_serving_blocks": st.integers(0, 40),
        "unowned_slabs": st.integers(0, 8),
        "revocable_blocks": st.integers(0, 20),
    }
)
RATES = st.fixed_dictionaries(
    {
        "horizon_ms": st.integers(0, 60),
        "decode_tokens_per_s": st.integers(0, 400),
        "prefill_tokens_per_s": st.integers(0, 3000),
        "max_request_tokens": st.integers(0, 200),
        "max_batch_tokens": st.integers(0, 128),
        "burst_requests": st.integers(0, 4),
        "burst_request_tokens": st.integers(0, 200),
    }
)
ALONE = RATES.map(lambda rates: {**rates, "burst_requests": 0})


def terms_of(known, rates, *, slabs: int, running: int) -> AdmissionTerms:
    return AdmissionTerms(
        epoch=1, to_partition=1, slabs=slabs, running_requests=running, **known, **rates
    )


def arriving(rates) -> tuple[int, int]:
    return prompts_within(
        **{name: value for name, value in rates.items() if name != "decode_tokens_per_s"}
    )


def fits(known, rates, *, slabs: int, stored, prompts) -> bool:
    memory = ServingMemory(
        blocks_per_slab=known["blocks_per_slab"],
        free=known["free_serving_blocks"],
        unowned_slabs=known["unowned_slabs"] - slabs,
        revocable=known["revocable_blocks"],
    )
    return worst_horizon_fits(
        memory,
        block_tokens=known["block_tokens"],
        stored=stored,
        horizon_ms=rates["horizon_ms"],
        decode_tokens_per_s=rates["decode_tokens_per_s"],
        prompts=prompts,
    )


def split(data, total: int, rates) -> list[int]:
    """Draw the prompts of all that arrive: `total` tokens, each as long as the terms allow."""
    requests, _ = arriving(rates)
    most = [rates["burst_request_tokens"]] * (requests - 1) + [rates["max_request_tokens"]]
    out = []
    for number, at_most in enumerate(most):
        least = max(0, total - sum(most[number + 1 :]))
        out.append(data.draw(st.integers(least, min(at_most, total))))
        total -= out[-1]
    return out


@given(known=KNOWN, rates=RATES, data=st.data())
def test_after_a_certified_grant_the_worst_that_can_come_fits(known, rates, data) -> None:
    stored = data.draw(st.lists(st.integers(0, 100), max_size=4))
    # As many slabs as there must be for some to be granted, and then all that may be: with more to
    # spare, nothing could go wrong.
    demand = admission_balance(terms_of(known, rates, slabs=0, running=len(stored))).demand_blocks
    missing = demand - known["free_serving_blocks"] - known["revocable_blocks"]
    enough = max(0, -(-missing // known["blocks_per_slab"]))
    known = {**known, "unowned_slabs": enough + data.draw(st.integers(1, 3))}
    slabs = largest_grant(terms_of(known, rates, slabs=0, running=len(stored)))
    terms = terms_of(known, rates, slabs=slabs, running=len(stored))
    _, tokens = arriving(rates)
    prompts = split(data, tokens, rates)
    assert admission_certificate(terms, log=None) is not None
    assert fits(known, rates, slabs=slabs, stored=stored, prompts=prompts)


@given(known=KNOWN, rates=ALONE, running=st.integers(0, 4))
def test_a_refused_grant_could_have_left_serving_short(known, rates, running) -> None:
    most = largest_grant(terms_of(known, rates, slabs=0, running=running))
    stored = [0] * running  # each next token starts a block
    _, tokens = arriving(rates)
    if most < known["unowned_slabs"]:
        assert not fits(known, rates, slabs=most + 1, stored=stored, prompts=[tokens])
    if most > 0:
        assert fits(known, rates, slabs=most, stored=stored, prompts=[tokens])


@given(known=KNOWN, rates=RATES, running=st.integers(0, 4))
def test_a_further_arrival_is_reckoned_with_a_block_too_many_at_most(known, rates, running) -> None:
    terms = terms_of(known, rates, slabs=0, running=running)
    requests, tokens = arriving(rates)
    # All but the last are as long as leaves a block just begun behind their first tokens.
    block, most = known["block_tokens"], rates["burst_request_tokens"]
    first = events_within(rates["horizon_ms"], rates["decode_tokens_per_s"])
    begun = min((1 - first) % block, most)
    prompts = [begun] * (requests - 1)
    assume(0 <= tokens - sum(prompts) <= rates["max_request_tokens"])
    assume(begun == (1 - first) % block)
    prompts.append(tokens - sum(prompts))
    needed = sum(-(-(one + first) // block) for one in prompts)
    balance = admission_balance(terms)
    reckoned = balance.request_blocks + balance.burst_blocks
    assert needed <= reckoned <= needed + requests - 1
