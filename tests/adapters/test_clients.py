"""Clients that others wrote, against the rollout service over a real socket."""

import asyncio
import ssl

import httpx2
import openai
import pytest

from rose.adapters.listening import listening
from rose.errors import InvalidArgument, Unavailable
from tests.adapters.rig import BODY, PROMPT, rigged, truth, until
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl

COUNT = 30
WANTED = {
    "model": "trial",
    "prompt": PROMPT,
    "max_tokens": COUNT,
    "seed": 7,
    "extra_body": {"return_token_ids": True, "return_weight_versions": True},
}


async def test_openai_streams_tokens_of_a_turn_that_is_revoked_twice() -> None:
    async with (
        rigged(token="secret") as rig,
        listening(rig.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
    ):
        assert [one.id async for one in await client.models.list()] == ["trial"]
        stream = aiter(await client.completions.create(**WANTED, stream=True))
        choices = []
        for count in range(1, COUNT + 1):
            await until(lambda: holder(rig))
            rig.step()
            choices += (await anext(stream)).choices
            if count in {5, 12}:
                worker = holder(rig)
                worker.revoke()
                worker.grant()
        choices += [event.choices[0] async for event in stream]
        assert [i for choice in choices for i in choice.token_ids] == truth(count=COUNT)
        assert rig.service.resumed_count() == 1
        assert choices[-1].finish_reason == "length"
        assert choices[-1].weight_versions == [{"version": "0", "start": 0, "end": COUNT}]
        await rig.until_empty()


def holder(rig):
    return next((worker for worker in rig.workers if worker._turns), None)


async def test_openai_reads_errors_and_whole_answers() -> None:
    async with (
        rigged(token="secret") as rig,
        listening(rig.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
    ):
        whole = await rig.play(asyncio.ensure_future(client.completions.create(**WANTED)))
        assert whole.choices[0].token_ids == truth(count=COUNT)
        assert whole.usage.completion_tokens == COUNT
        with pytest.raises(openai.BadRequestError, match="top_p"):
            await client.completions.create(**WANTED, top_p=0.5)
        with pytest.raises(openai.NotFoundError, match="model must be"):
            await client.completions.create(**{**WANTED, "model": "gpt"})
        conflict = {**WANTED, "extra_body": {"weight_version": {"min": 3}}}
        with pytest.raises(openai.ConflictError, match="at least 3"):
            await client.completions.create(**conflict)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="other").models.list()


async def test_a_client_that_closes_its_connection_cancels_its_turn() -> None:
    async with rigged(1) as rig, listening(rig.app) as url:
        async with httpx2.AsyncClient(base_url=url) as client:
            body = {"prompt": PROMPT, "max_tokens": 9000, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as stream:
                await until(lambda: rig.workers[0]._turns)
                rig.step()
                assert (await anext(stream.aiter_lines())).startswith("data: ")
        await until(lambda: not rig.workers[0]._turns)
        await rig.until_empty()


async def test_an_address_of_strangers_or_a_taken_one_is_refused() -> None:
    async with rigged(0) as rig, listening(rig.app) as url:
        with pytest.raises(Unavailable, match="cannot listen at"):
            async with listening(rig.app, url.removeprefix("http://")):
                pass
        for address in ("0.0.0.0:0", "somewhere", "127.0.0.1"):
            with pytest.raises(InvalidArgument, match="loopback"):
                async with listening(rig.app, address):
                    pass


@needs_openssl
async def test_other_machines_come_in_by_tls_and_the_token(tmp_path) -> None:
    authority = make_authority(tmp_path)
    files = make_certificate(authority, "server")
    context = ssl.create_default_context(cafile=authority)
    async with (
        rigged(step_s=0.001, token="secret") as rig,
        listening(rig.app, "0.0.0.0:0", tls=(files.certificate, files.key)) as url,
    ):
        local = url.replace("0.0.0.0", "localhost")
        headers = {"authorization": "Bearer secret"}
        async with httpx2.AsyncClient(base_url=local, verify=context, headers=headers) as client:
            said = (await client.post("/v1/completions", json=BODY)).json()
            assert said["choices"][0]["token_ids"] == truth()


async def test_files_of_tls_that_are_none_are_refused(tmp_path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    async with rigged(0) as rig:
        for path in (text, tmp_path / "missing.pem"):
            with pytest.raises(InvalidArgument, match="files of tls cannot be used"):
                async with listening(rig.app, tls=(path, path)):
                    pass
