"""A certificate means that what it counts on fits, and a refusal that it might not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import AdmissionTerms, admission_balance, admission_certificate, largest_grant
from rose.errors import InvalidArgument
from tests.reference.slo import ServingMemory, worst_horizon_fits

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
        "burst_requests": st.integers(0, 2),
        "burst_request_tokens": st.integers(0, 70),
    }
)


def terms_of(known, rates, *, slabs: int, running: int) -> AdmissionTerms:
    return AdmissionTerms(
        epoch=1, to_partition=1, slabs=slabs, running_requests=running, **known, **rates
    )


def fits(known, rates, *, slabs: int, stored) -> bool:
    memory = ServingMemory(
        blocks_per_slab=known["blocks_per_slab"],
        free=known["free_serving_blocks"],
        unowned_slabs=known["unowned_slabs"] - slabs,
        revocable=known["revocable_blocks"],
    )
    return worst_horizon_fits(memory, block_tokens=known["block_tokens"], stored=stored, **rates)


@given(known=KNOWN, rates=RATES, data=st.data())
def test_after_a_certified_grant_the_worst_that_can_come_fits(known, rates, data) -> None:
    stored = data.draw(st.lists(st.integers(0, 100), max_size=4))
    slabs = data.draw(st.integers(1, known["unowned_slabs"] + 1))
    terms = terms_of(known, rates, slabs=slabs, running=len(stored))
    if admission_certificate(terms, log=None) is not None:
        assert fits(known, rates, slabs=slabs, stored=stored)


@given(known=KNOWN, rates=RATES, running=st.integers(0, 4))
def test_a_refused_grant_could_have_left_serving_short(known, rates, running) -> None:
    most = largest_grant(terms_of(known, rates, slabs=0, running=running))
    full_blocks = [0] * running  # each next token starts a block
    if most < known["unowned_slabs"]:
        assert not fits(known, rates, slabs=most + 1, stored=full_blocks)
    if most > 0:
        assert fits(known, rates, slabs=most, stored=full_blocks)


@given(known=KNOWN, rates=RATES, running=st.integers(0, 4))
def test_the_balance_adds_up(known, rates, running) -> None:
    balance = admission_balance(terms_of(known, rates, slabs=0, running=running))
    parts = balance.growth_blocks + balance.request_blocks + balance.burst_blocks
    assert balance.demand_blocks == parts
    assert balance.slack_blocks == balance.supply_blocks - balance.demand_blocks


@pytest.mark.parametrize(
    "wrong", [{"block_tokens": 0}, {"horizon_ms": -1.0}, {"decode_tokens_per_s": float("nan")}]
)
def test_terms_without_a_meaning_are_invalid(wrong) -> None:
    good = {
        "epoch": 1,
        "to_partition": 1,
        "slabs": 1,
        "blocks_per_slab": 4,
        "block_tokens": 16,
        "free_serving_blocks": 1,
        "unowned_slabs": 1,
        "revocable_blocks": 0,
        "horizon_ms": 50.0,
        "running_requests": 0,
        "decode_tokens_per_s": 100.0,
        "prefill_tokens_per_s": 100.0,
        "max_request_tokens": 10,
        "max_batch_tokens": 10,
        "burst_requests": 0,
        "burst_request_tokens": 0,
    }
    AdmissionTerms(**good)
    with pytest.raises(InvalidArgument):
        AdmissionTerms(**{**good, **wrong})
