"""Requests of stock clients against the service, over its application."""

import json

from tests.adapters.clients.recorded import REQUESTS
from tests.adapters.rig import rigged
from tests.adapters.test_routes import Bytes


async def test_every_recorded_request_is_answered(subtests) -> None:
    async with rigged(step_s=0.001, tokenizer=Bytes()) as rig:
        for one in REQUESTS:
            with subtests.test(who=one.who, path=one.path):
                body = None if one.body is None else json.dumps(one.body)
                headers = {"content-type": "application/json", **one.headers}
                answer = await rig.client.request(
                    one.method, one.path, content=body, headers=headers
                )
                assert answer.status_code == one.status, answer.text
                if one.status == 501:
                    assert "rose.publish" in answer.json()["error"]["message"]
