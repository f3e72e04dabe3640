"""TRL's own client code, unpatched but for one question: whether vLLM is installed here."""

import asyncio
from collections import defaultdict

import pytest

from rose.adapters.listening import listening
from rose.adapters.trial import commit_trial_weights
from tests.adapters.rig import PROMPT, rigged, truth

pytestmark = pytest.mark.peer
pytest.importorskip("trl", minversion="1.16")


@pytest.fixture(autouse=True)
def imported() -> None:
    """Import TRL before the time of a test begins, because it takes seconds."""
    from trl.experimental.async_grpo import async_rollout_worker, vllm_client
    from trl.generation import vllm_client as server_mode

    assert async_rollout_worker
    assert vllm_client
    assert server_mode


async def test_the_client_of_server_mode_generates_and_updates_weights(monkeypatch) -> None:
    from trl.generation import vllm_client

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda: True)

    async def bring(infos, version) -> None:
        await commit_trial_weights(rig.workers, infos, version)

    def use(url: str) -> None:
        client = vllm_client.VLLMClient(base_url=url, connection_timeout=20)
        assert client.model == "trial"
        assert client.get_world_size() == 2
        assert client.get_server_info()["weight_transfer_config"] == {"backend": "rose"}
        assert client.get_server_info()["model_config"]["logprobs_mode"] == "processed_logprobs"
        sampling = {"n": 2, "max_tokens": 6, "generation_kwargs": {"seed": 7}}
        said = client.generate([PROMPT, [9]], **sampling)
        assert said["prompt_ids"] == [PROMPT, [9]]
        assert said["completion_ids"] == [
            truth(place=place, prompt=3 if place < 2 else 1) for place in range(4)
        ]
        assert said["logprobs"] == [[[pytest.approx(-5.545177)]] * 6] * 4
        assert said["logprob_token_ids"] == [[[i] for i in ids] for ids in said["completion_ids"]]
        with client.weight_update():
            client._post(f"{url}/update_weights", json={"update_info": {"names": ["w"]}})
        client.reset_prefix_cache()
        again = client.generate([PROMPT], max_tokens=6, generation_kwargs={"seed": 7})
        assert again["completion_ids"] == [truth(version=1)]

    async with rigged(step_s=0.001, weights=bring) as rig, listening(rig.app) as url:
        await asyncio.to_thread(use, url)
        await rig.until_empty()


async def test_the_client_of_async_grpo_reads_status_pauses_and_updates() -> None:
    from accelerate import PartialState
    from trl.experimental.async_grpo.vllm_client import VLLMClient

    PartialState(cpu=True)  # as a trainer's process has one

    async def bring(infos, version) -> None:
        assert [dict(one) for one in infos] == [{"names": ["w"]}]
        await commit_trial_weights(rig.workers, infos, version)

    def use(url: str) -> None:
        client = VLLMClient(url)
        client.wait_for_server_ready()
        assert client.get_max_model_len() == rig.service.limits.context_tokens
        assert client.get_dtype() == "torch.bfloat16"
        info = client.get_server_info()
        assert (info["lora_config"], info["parallel_config"]["data_parallel_size"]) == (None, 1)
        assert client.get_world_size() == 2
        client.init_weight_transfer_engine({})
        client.pause()
        assert rig.service.is_paused
        client.start_weight_update()
        client.update_weights({"names": ["w"]})
        client.finish_weight_update()
        client.resume()
        assert rig.service.versions() == {1: 2}

    async with rigged(step_s=0.001, weights=bring) as rig, listening(rig.app) as url:
        await asyncio.to_thread(use, url)


async def test_the_rollout_loop_of_async_grpo_gets_a_turn_that_was_revoked() -> None:
    import aiohttp
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    class Loop(_AsyncRolloutLoop):
        _request_model = "trial"

        def __init__(self, url: str, session) -> None:
            self.vllm_server_url, self.session, self.request_timeout = url, session, 30
            self.max_tokens, self.temperature, self.top_p = 80, 1.0, 1.0
            self.top_k, self.min_p, self.repetition_penalty = 0, None, 1.0
            self._counters = defaultdict(int)

    async with (
        rigged(step_s=0.005) as rig,
        listening(rig.app) as url,
        aiohttp.ClientSession() as session,
    ):
        turn = asyncio.create_task(Loop(url, session)._generate_one_turn(PROMPT))
        while not turn.done():
            for worker in [one for one in rig.workers if len(one._turns)]:
                await asyncio.sleep(0.05)
                worker.revoke()
                worker.grant()
            await asyncio.sleep(0.01)
        tokens, logprobs = await turn
        assert len(tokens) == len(logprobs) == 80
        assert rig.service.resumed_count() == 1
