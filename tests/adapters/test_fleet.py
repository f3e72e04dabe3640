import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose.adapters import member as member_module
from rose.adapters.fleet import Upstream, WorkerState
from rose.adapters.fleet_limits import FleetLimits
from rose.engines.http import FEATURES, SGLANG_FEATURES, Dialect
from rose.engines.http import worker as worker_module
from rose.errors import InvalidArgument
from tests.adapters.fleet_rig import Rig, rigged
from tests.engines.http.fake import BLOCK, CONTEXT, KV_BLOCKS, VOCABULARY, FakeEngine
from tests.engines.http.rig import until
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl

FAR = "http:" + "//192.0.2.1:8000"  # an address that no machine has
UPSTREAM = Upstream("127.0.0.1:5555", "secret")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the intervals of health checks, retries and updates."""
    monkeypatch.setattr(worker_module, "_HEALTH_S", 0.02)
    monkeypatch.setattr(worker_module, "_DEADLINE_ELSE_S", 0.1)
    monkeypatch.setattr(worker_module, "_DEADLINE_S", {Dialect.SGLANG: 0.1})
    monkeypatch.setattr(member_module, "_RETRY_S", 0.02)
    monkeypatch.setattr(member_module, "_AGAIN_S", 0.05)
    return


# ---- coming and going ----------------------------------------------------------------------------


async def test_engines_of_all_dialects_are_one_fleet() -> None:
    async with rigged() as rig:
        for dialect in ("vllm", "sglang", "rose"):
            await rig.join(dialect)
        await rig.turns(24)
        rows = rig.fleet.list()
        assert [row.dialect for row in rows] == [Dialect.VLLM, Dialect.SGLANG, Dialect.ROSE]
        assert {row.model for row in rows} == {"tiny"}
        assert {row.kv_tokens for row in rows} == {KV_BLOCKS * BLOCK}
        assert rig.service.facts() == FleetLimits(
            VOCABULARY, CONTEXT, (2,), SGLANG_FEATURES & {"top_p"}, "tiny"
        )
        for last in (2, 1, 0):
            results = await rig.turns(4)
            assert {worker for one in results for worker in one.workers} <= set(range(last + 1))
            await rig.fleet.drain(last)


async def test_facts_are_those_that_every_worker_has_and_the_largest_context() -> None:
    async with rigged() as rig:
        assert rig.fleet.facts() == FleetLimits(None, 0, (), frozenset(), None)
        await rig.join("vllm")
        assert rig.fleet.facts().features == FEATURES
        await rig.join("sglang")
        assert rig.fleet.facts().features == SGLANG_FEATURES
        assert rig.fleet.facts().context_tokens == CONTEXT


async def test_engine_joins_when_it_is_up_and_the_row_says_what_it_waits_for() -> None:
    async with rigged() as rig:
        one = await rig.start()
        await one.kill()
        number = await rig.fleet.add(one.url)
        turn = asyncio.create_task(rig.turn())
        await until(lambda: rig.row(number).reason)
        assert rig.row(number).state is WorkerState.JOINING
        assert "refuses connections" in rig.row(number).reason
        await one.start()
        await rig.until_ready(number)
        assert rig.row(number).reason is None
        assert (await turn).workers == (number,)


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "rose"])
async def test_restarted_engine_is_the_same_worker_with_higher_epochs(dialect: str) -> None:
    async with rigged() as rig:
        one = await rig.join(dialect)
        turns = [asyncio.create_task(rig.turn(300)) for _ in range(4)]
        await until(lambda: one.decoded > 40)
        before = max(grant.grant_epoch for grant in rig.service.grants)
        await one.kill()
        await until(lambda: rig.row().state is WorkerState.LOST)
        assert rig.row().reason
        await one.restart()
        await rig.until_ready(0)
        assert min(grant.grant_epoch for grant in rig.service.grants if grant.kv_tokens) <= before
        assert rig.service.grants[-1].grant_epoch > before
        for result in await asyncio.gather(*turns):
            assert set(result.workers) == {0}
        assert rig.service.scheduler.counts().resumed == 4


async def test_engine_that_stood_still_is_the_same_worker_again() -> None:
    async with rigged() as rig:
        one = await rig.join()
        turn = asyncio.create_task(rig.turn(200))
        await until(lambda: one.decoded > 20)
        one.can_run.clear()
        await until(lambda: rig.row().state is WorkerState.LOST)
        assert "did not answer" in rig.row().reason
        one.can_run.set()
        await rig.until_ready(0)
        assert (await turn).workers == (0, 0)


async def test_drained_worker_hands_its_turns_over_at_the_token() -> None:
    async with rigged() as rig:
        one = await rig.join()
        turns = [asyncio.create_task(rig.turn(200)) for _ in range(4)]
        await until(lambda: one.decoded > 40)
        other = await rig.join()
        await rig.fleet.drain(0)
        assert rig.row(0).state is WorkerState.DRAINING
        assert rig.row(0).running == 0
        results = await asyncio.gather(*turns)
        assert {result.workers for result in results} == {(0, 1)}
        assert one.decoded + other.decoded <= 4 * 200 + 4 * 8  # none started again
        await rig.turn()
        assert rig.fleet.facts().model == "tiny"


@pytest.mark.parametrize("is_up", [False, True])
async def test_worker_that_is_drained_while_it_joins_gets_no_turn(is_up: bool) -> None:
    async with rigged() as rig:
        one, other = await rig.start(step_s=0.02), await rig.join("rose")
        if not is_up:
            await one.kill()
        number = await rig.fleet.add(one.url)  # if it is up, it is being measured now
        await rig.fleet.drain(number)
        if not is_up:
            await one.start()
        await until(rig.fleet._tasks[number].done)
        asked = len(one.bodies)
        assert {worker for result in await rig.turns(8) for worker in result.workers} == {0}
        assert len(one.bodies) == asked
        assert rig.row(number).state is WorkerState.DRAINING
        assert other.bodies


async def test_removed_worker_is_gone_and_its_engine_may_come_again() -> None:
    async with rigged() as rig:
        one = await rig.join()
        await rig.fleet.remove(0)
        assert rig.fleet.list() == []
        await until(lambda: one.running == 0)
        turn = asyncio.create_task(rig.turn())
        assert await rig.fleet.add(one.url) == 1
        assert (await turn).workers == (1,)
        for act in (rig.fleet.remove, rig.fleet.drain):
            with pytest.raises(InvalidArgument, match="no worker 0; workers: 1"):
                await act(0)


async def test_drained_engine_that_is_added_again_is_a_worker_again() -> None:
    async with rigged() as rig:
        one = await rig.join()
        await rig.fleet.drain(0)
        assert await rig.fleet.add(one.url) == 1
        await rig.until_ready(1)
        assert [row.number for row in rig.fleet.list()] == [1]


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:80",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:0",
        "http://u:p@127.0.0.1",
        "http://127.0.0.1?a",
    ],
)
async def test_url_that_is_none_is_refused(url: str) -> None:
    async with rigged() as rig:
        with pytest.raises(InvalidArgument, match="URL"):
            await rig.fleet.add(url)
        assert rig.fleet.list() == []


async def test_token_leaves_the_machine_over_https_only() -> None:
    async with rigged() as rig:
        with pytest.raises(InvalidArgument, match="https"):
            await rig.fleet.add(FAR, token="secret")


async def test_token_is_sent_and_a_wrong_one_is_the_reason_of_the_row() -> None:
    async with rigged() as rig:
        one = await rig.start()
        one.token = "secret"
        number = await rig.fleet.add(one.url, token="wrong")
        await until(lambda: rig.row(number).reason)
        assert "401" in rig.row(number).reason
        await rig.fleet.remove(number)
        await rig.fleet.add(one.url, token="secret")
        assert (await rig.turn()).workers == (1,)


@needs_openssl
async def test_turns_and_tokens_go_over_tls_to_engines_with_a_trusted_certificate(
    tmp_path: Path,
) -> None:
    authority = make_authority(tmp_path)
    files = make_certificate(authority, "engine")
    async with rigged() as rig:
        one = FakeEngine()
        one.token, one.tls = "secret", ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        one.tls.load_cert_chain(files.certificate, files.key)
        await one.start()
        rig.parts.push_async_callback(one.kill)
        number = await rig.fleet.add(one.url, token="secret")
        await until(lambda: rig.row(number).reason)
        assert "certificate" in rig.row(number).reason.lower()
        assert one.bodies == []
        await rig.fleet.remove(number)
        trust = ssl.create_default_context(cafile=authority)
        await rig.fleet.add(one.url, token="secret", tls=trust)
        assert len((await rig.turn()).tokens) == 40


async def test_engine_is_added_once() -> None:
    async with rigged() as rig:
        one = await rig.join()
        with pytest.raises(InvalidArgument, match="worker 0 already"):
            await rig.fleet.add(one.url + "/")


async def test_engine_with_another_model_is_refused() -> None:
    async with rigged() as rig:
        await rig.join()
        other = await rig.start()
        other.model = other.root = "big"
        with pytest.raises(InvalidArgument, match="'tiny' here, and 'big' there"):
            await rig.fleet.add(other.url)
        assert len(rig.fleet.list()) == 1
        other.model, other.root = "name-of-its-own", "models/tiny"
        await rig.fleet.add(other.url)


async def test_engine_that_comes_back_with_another_model_stays_away() -> None:
    async with rigged() as rig:
        one = await rig.join()
        await one.kill()
        await until(lambda: rig.row().state is WorkerState.LOST)
        one.model = one.root = "big"
        await one.start()
        await until(lambda: "big" in (rig.row().reason or ""))
        assert rig.row().state is not WorkerState.READY
        one.model = one.root = "tiny"
        await rig.until_ready(0)


# ---- weights -------------------------------------------------------------------------------------


async def keep_busy(rig: Rig, versions: set[int]) -> None:
    while True:
        for result in await rig.turns(4, 60):
            versions.update(result.versions)


@pytest.fixture
def wanted() -> list[str]:
    return [
        "/start_weight_update",
        "/update_weights",
        "/update_weight_version",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/update_weight_version",
    ]


async def test_an_update_that_another_client_left_open_hinders_none() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        engine = await rig.join()
        engine.is_updating = True
        rig.fleet.offer(3)
        await until(lambda: rig.row(0).version == 3)


async def test_stock_vllm_follows_offers_and_no_token_has_a_wrong_version(
    wanted: list[str],
) -> None:
    seen: set[int] = set()
    async with rigged(weights=UPSTREAM) as rig:
        engines = [await rig.join() for _ in range(2)]
        busy = asyncio.create_task(keep_busy(rig, seen))
        for version in (1, 2, 5):
            rig.fleet.offer(version)
            await until(lambda v=version: {rig.row(n).version for n in (0, 1)} == {v})
            await until(lambda v=version: v in seen or busy.done())
        busy.cancel()
        await asyncio.wait({busy})
        assert busy.cancelled()  # and so every token was that of its version
        for one in engines:
            paths = [path for path, _ in one.calls]
            assert paths == ["/init_weight_transfer_engine"] + wanted * 3
            assert one.calls[0][1] == {
                "init_info": {"address": "127.0.0.1:5555", "token": "secret"}
            }
            assert one.label == "5"


async def test_borrower_under_vllm_is_updated_by_routes_and_gets_its_grant_back(
    wanted: list[str],
) -> None:
    seen: set[int] = set()
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.start("rose")
        one.is_vllm = True
        await rig.fleet.add(one.url)
        await rig.until_ready(0)
        busy = asyncio.create_task(keep_busy(rig, seen))
        for version in (1, 2):
            rig.fleet.offer(version)
            await until(lambda v=version: rig.row().version == v and rig.row().kv_tokens)
            await until(lambda v=version: v in seen or busy.done())
        busy.cancel()
        await asyncio.wait({busy})
        assert busy.cancelled()
        assert [path for path, _ in one.calls] == ["/init_weight_transfer_engine"] + wanted * 2


async def test_slow_engine_holds_up_no_other_and_goes_on_with_its_version() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        slow, _ = [await rig.join() for _ in range(2)]
        slow.received = 0
        rig.fleet.offer(3)
        await until(lambda: rig.row(1).version == 3)
        assert rig.row(0).version == 0
        await rig.fleet.drain(1)
        assert {version for one in await rig.turns(8) for version in one.versions} == {0}
        slow.received = 3
        await until(lambda: rig.row(0).version == 3)


async def test_engine_that_cannot_update_keeps_its_version_and_the_row_says_why() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.join()
        one.fails_at = "/init_weight_transfer_engine"
        rig.fleet.offer(1)
        await until(lambda: rig.row().reason)
        assert "version 1" in rig.row().reason
        assert "/init_weight_transfer_engine fails" in rig.row().reason
        assert (rig.row().state, rig.row().version) == (WorkerState.READY, 0)
        assert (await rig.turn()).versions == (0,) * 40
        one.fails_at = None
        rig.fleet.offer(2)
        await until(lambda: rig.row().version == 2)
        assert rig.row().reason is None
        assert (await rig.turn()).versions == (2,) * 40


async def test_engine_with_unknown_weights_gets_no_turn_until_it_has_loaded_a_version() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.join()
        one.fails_at = "/finish_weight_update"  # so its weights are new, and their name is old
        rig.fleet.offer(1)
        await until(lambda: rig.row().version is None)
        turn = asyncio.create_task(rig.turn())
        await until(lambda: one.calls.count(("/finish_weight_update", {})) > 1)
        assert rig.row().kv_tokens == 0
        assert not turn.done()
        one.fails_at = None
        assert set((await turn).versions) == {1}


async def test_update_that_breaks_off_is_done_again_before_the_next_turn() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.join()
        turn = asyncio.create_task(rig.turn(200))
        await until(lambda: one.decoded > 20)
        one.breaks_at = "/reset_prefix_cache"
        rig.fleet.offer(1)
        await until(lambda: rig.row().state is WorkerState.LOST)
        one.breaks_at = None
        await rig.until_ready(0)
        versions = (await turn).versions
        assert set(versions) == {0, 1}
        assert (rig.row().version, one.label) == (1, "1")


async def test_late_engine_and_restarted_engine_get_the_offered_version() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.join()
        rig.fleet.offer(4)
        await rig.join()
        await until(lambda: {row.version for row in rig.fleet.list()} == {4})
        await one.kill()
        await until(lambda: rig.row().state is WorkerState.LOST)
        await one.restart()
        assert one.version == 0
        await until(lambda: one.version == 4 and rig.row().version == 4)
        await rig.turns(8)


async def test_versions_in_folders_go_to_engines_that_load_them() -> None:
    async with rigged() as rig:
        vllm, sglang, rose = [await rig.join(name) for name in ("vllm", "sglang", "rose")]
        rig.fleet.offer(7, folder="runs/weight_v000007")
        await until(lambda: (rig.row(1).version, rig.row(2).version) == (7, 7))
        assert (
            "/update_weights_from_disk",
            {"model_path": "runs/weight_v000007", "weight_version": "7"},
        ) in sglang.calls
        assert rose.calls == [
            ("/update_weights", {"weight_dir": "runs/weight_v000007", "weight_version": 7})
        ]
        assert vllm.calls == []
        assert "takes versions from a publisher" in rig.row(0).reason
        await rig.turns(12)


async def test_engines_that_follow_by_themselves_are_told_nothing() -> None:
    async with rigged(weights=UPSTREAM) as rig:
        one = await rig.join("rose")
        rig.fleet.offer(1)
        await one.tell(version=1)
        await until(lambda: rig.row().version == 1)
        assert one.calls == []


# ---- speed ---------------------------------------------------------------------------------------


async def test_speed_is_measured_when_the_engine_does_not_tell_it() -> None:
    async with rigged() as rig:
        quick, slow = await rig.join(step_s=0.001), await rig.join(step_s=0.02)
        told = await rig.join("rose")
        assert quick.bodies
        assert slow.bodies
        assert told.bodies == []
        assert rig.row(0).speed.decode_step_ms < rig.row(1).speed.decode_step_ms
        assert rig.row(1).speed.step_ms(1) >= 19
        assert rig.row(2).speed.prefill_tokens_per_s == 50_000.0


async def test_client_names_the_folder_of_a_version_and_sends_no_tensors() -> None:
    async with rigged() as rig:
        one = await rig.join("rose")
        await rig.fleet.load([{"weight_dir": "runs/weight_v000002"}], 2)
        await until(lambda: rig.row().version == 2)
        for infos in ([], [{"names": ["w"]}], [{"weight_dir": "a"}, {"weight_dir": "b"}]):
            with pytest.raises(InvalidArgument, match="weight_dir"):
                await rig.fleet.load(infos, 3)
        assert len(one.calls) == 1
