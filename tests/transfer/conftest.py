"""Threads of these tests wait only briefly."""

import pytest

SHORT_S = {
    "receiving.puller.BACKOFF_S": 0.001,
    "receiving.receiver.WAIT_S": 0.05,
    "relaying.relay.WAIT_S": 0.05,
    "rounds.BACKOFF_S": 0.001,
    "rounds.BACKOFF_MAX_S": 0.02,
}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, seconds in SHORT_S.items():
        monkeypatch.setattr(f"rose.transfer.{place}", seconds)
