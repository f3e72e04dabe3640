"""What serving's scheduler tells its lane, and when."""

import pytest

from rose.slo.verify import verify_log
from tests.engines.vllm.rig import BLOCK_TOKENS, Pair

pytestmark = pytest.mark.peer


def test_the_lane_hears_of_every_request_and_of_its_end(vllm, log_path) -> None:
    from vllm.v1.request import RequestStatus

    with Pair(vllm, log_path, slabs=64) as pair:
        state = pair.device.lender.state
        for name in ("ends", "aborted"):
            pair.serving.add_request(vllm.request(name, [1] * BLOCK_TOKENS, tokens=2))
        assert state.pending == 2
        vllm.step(pair.serving)
        assert state.pending == 2
        pair.serving.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
        assert state.pending == 1
        vllm.step(pair.serving)
        assert state.pending == 0


def test_memory_is_checked_when_it_was_taken_and_offered_when_it_was_freed(
    vllm, log_path, monkeypatch
) -> None:
    with Pair(vllm, log_path, slabs=64) as pair:
        lane, told = pair.serving.lane, []
        alloc = lane.alloc
        monkeypatch.setattr(lane, "alloc", lambda n: (told.append("alloc"), alloc(n))[1])
        monkeypatch.setattr(lane, "settle", lambda: told.append("settle"))
        pair.serving.add_request(vllm.request("one", [1] * BLOCK_TOKENS, tokens=2))
        vllm.step(pair.serving)
        assert told == ["alloc"]
        vllm.step(pair.serving)
        assert told == ["alloc", "alloc", "settle"]
        assert pair.serving.reset_prefix_cache()
        assert told == ["alloc", "alloc", "settle", "settle"]


@pytest.mark.parametrize("side", ["serving", "borrower"])
def test_a_plan_names_its_new_blocks_to_be_zeroed(vllm, log_path, side: str) -> None:
    with Pair(vllm, log_path, slabs=64) as pair:
        scheduler = getattr(pair, side)
        scheduler.needs_kv_cache_zeroing = True
        scheduler.add_request(vllm.request("one", [1] * BLOCK_TOKENS, tokens=1))
        plan = scheduler.schedule()
        (blocks,) = scheduler.kv_cache_manager.get_block_ids("one")
        assert plan.new_block_ids_to_zero == blocks != []
        vllm.run(scheduler, plan)


def test_requests_get_all_their_tokens_after_lending_has_ended(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=64) as pair:
        pair.serving.add_request(vllm.request("served", list(range(100)), tokens=20))
        vllm.step(pair.serving)
        pair.device.close()
        pair.finish()
        assert pair.tokens_of["served"] == 20
        assert pair.device.gave_back is None
    assert verify_log(log_path).violations == []
