"""Real vLLM servers as workers: events of a borrower, and versions on a stock server."""

from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

import rose
from bench.vllm_servers import MODEL_TOKENS, Server
from tests.engines.vllm.live import BURSTS, ROLLOUT_TOKENS, ROLLOUTS, ROUNDS_MAX, EventReader, Pair
from tests.waiting import wait_for

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


def test_events_begin_with_what_the_engine_is(pair: Pair) -> None:
    events = EventReader(pair.borrower)
    events.wait("version", lambda one: one == {"version": 0, "is_match": True, "pause_ms": 0.0})
    assert [word for word, _ in events.seen[:3]] == ["status", "grant", "version"]
    status, grant = events.of("status")[0], events.of("grant")[0]
    assert (status["kind"], status["vocabulary"], status["eos_token_ids"]) == (
        "borrowed",
        512,
        [256],
    )
    assert (status["context_tokens"], status["seats"]) == (MODEL_TOKENS, 16)
    assert grant["kv_tokens"] == status["kv_tokens"] > 5 * MODEL_TOKENS
    engine = pair.borrower.status["engine"]
    assert engine["status"] == status
    assert engine["grant"]["kv_tokens"] == grant["kv_tokens"]
    with pytest.raises(HTTPError, match="404"):
        pair.serving.get("/rose/events")


def test_a_revocation_is_an_event_and_lending_again_is_a_new_grant(pair: Pair) -> None:
    events = EventReader(pair.borrower)
    before = events.wait("grant", lambda one: one["kv_tokens"] > 0)
    rollouts = pair.roll_out()
    pair.wait_until_lent()
    wait_for(lambda: pair.borrower.counter("vllm:num_requests_running") > 0)
    pair.lending("off")
    revoked = events.wait("grant", lambda one: one["kv_tokens"] == 0)
    assert revoked["grant_epoch"] == before["grant_epoch"]
    waiting = events.wait("wait", lambda one: one["reason"] == "over_limit")
    assert "`rose lending on`" in waiting["remedy"]
    pair.lending("on")
    again = events.wait("grant", lambda one: one["kv_tokens"] == before["kv_tokens"])
    assert again["grant_epoch"] == before["grant_epoch"] + 1
    events.wait("wait", lambda one: one["reason"] is None)
    assert rollouts.tokens() == pair.rollouts_alone


def test_bursts_of_serving_shrink_the_grant_and_it_grows_again(pair: Pair) -> None:
    events = EventReader(pair.borrower)
    most = events.wait("grant", lambda one: one["kv_tokens"] > 0)["kv_tokens"]
    for _ in range(ROUNDS_MAX):
        rollouts = pair.roll_out()
        pair.wait_until_lent()
        for _ in range(BURSTS):
            pair.burst()
        assert rollouts.tokens() == pair.rollouts_alone
        if min(one["kv_tokens"] for one in events.of("grant")) < most:
            break
    assert min(one["kv_tokens"] for one in events.of("grant")) < most
    events.wait("grant", lambda one: one["kv_tokens"] == most)


def test_an_idle_borrower_tells_that_serving_is_gone_and_is_back(pair: Pair) -> None:
    events = EventReader(pair.borrower)
    before = events.wait("grant", lambda one: one["kv_tokens"] > 0)
    pair.serving.kill()
    events.wait("grant", lambda one: one["kv_tokens"] == 0)
    pair.serving.start()
    again = events.wait("grant", lambda one: one["kv_tokens"] > 0)
    assert again["grant_epoch"] == before["grant_epoch"] + 1
    assert pair.roll_out().tokens() == pair.rollouts_alone


def test_a_stream_of_events_does_not_delay_the_end_of_its_server(pair: Pair) -> None:
    events = EventReader(pair.borrower)
    events.wait("version", lambda one: one["is_match"])
    pair.borrower.stop()
    events.wait_until_ended()
    pair.borrower.start()
    assert pair.roll_out().tokens() == pair.rollouts_alone


@pytest.fixture
def stock(pair: Pair) -> Iterator[Server]:
    pair.stock.start()
    yield pair.stock
    pair.stock.stop()


def load(server: Server, version: int) -> None:
    """Load a version by vLLM's routes, as soon as the server's host copy has it."""

    def is_ready() -> bool:
        server.post("/start_weight_update")
        wanted = {"version": version, "timeout_s": 0.01, "is_only_waiting": True}
        try:
            server.post("/update_weights", update_info=wanted)
        except HTTPError:  # vLLM has then ended the update.
            return False
        return True

    wait_for(is_ready)
    server.post("/update_weights", update_info={"version": version, "timeout_s": 60})
    server.post("/finish_weight_update", weight_version=str(version))
    server.post("/reset_prefix_cache")


def test_a_stock_server_and_a_borrower_load_two_versions_of_one_publisher(
    pair: Pair, stock: Server
) -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(pair.rolled_out)
    first = {name: one.detach().clone() for name, one in model.state_dict().items()}
    other = {name: one * 1.25 if "down_proj" in name else one for name, one in first.items()}
    events = EventReader(pair.borrower)
    assert pair.roll_out(stock).tokens() == pair.rollouts_alone
    with rose.publish(first) as publisher:
        for one in (stock, pair.borrower):
            one.post(
                "/init_weight_transfer_engine",
                init_info={"address": publisher.address, "token": publisher.token},
            )
        for weights, is_first in ((other, False), (first, True)):
            version = publisher.update(weights)
            for one in (stock, pair.borrower):
                load(one, version)
            told = events.wait("version", lambda one, v=version: one["version"] == v)  # type: ignore[misc]
            assert told["is_match"]
            assert told["pause_ms"] > 0
            tokens = pair.roll_out(stock).tokens()
            assert tokens == pair.roll_out().tokens()
            assert (tokens == pair.rollouts_alone) is is_first
    assert {len(one) for one in tokens} == {ROLLOUT_TOKENS}
    assert len(tokens) == len(ROLLOUTS)
    assert {one["kv_tokens"] > 0 for one in events.of("grant")} == {True}
