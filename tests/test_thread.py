"""No thread of rose dies unseen: whatever rests on it is stopped, or told."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rose.errors import Unavailable
from rose.executor import CoServing
from rose.executor.keeper import Keeper
from rose.executor.listener import Listener
from rose.executor.watcher import Watcher
from rose.thread import Thread, ThreadPool
from rose.transfer import VersionLog
from rose.transfer.publishing.merger import MergerThread
from rose.transfer.rounds import Rounds
from rose.transfer.signing import Signing
from rose.transfer.wire.chunk_plane import ANSWERERS, ChunkServer
from rose_lab.broker.lending import LendingLoop
from rose_lab.demo.rl.background import Background
from rose_lab.demo.rl.supervisor import Supervisor
from tests.executor.conftest import ROLLOUT_KV, SLAB, Rig
from tests.waiting import wait_for

# pytest reports what threading.excepthook is given, which is the other half of "seen".
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

WAIT_S = 60.0
TOKEN = b"t" * 32


class Broken(Exception):
    """A bug."""


def broken(*_: object, **__: object) -> Any:
    raise Broken("a bug of rose")


def test_a_failure_reaches_the_owner_and_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    told: list[BaseException] = []
    one = Thread(broken, name="rose-test", on_failure=told.append)
    one.start()
    one.join(WAIT_S)
    assert [type(error) for error in told] == [Broken]
    assert told == shown == [one.failure]


def test_a_good_end_is_no_failure() -> None:
    one = Thread(lambda: None, name="rose-test", on_failure=broken)
    one.start()
    one.join(WAIT_S)
    assert one.failure is None


def test_an_owner_that_fails_too_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    one = Thread(lambda: 1 // 0, name="rose-test", on_failure=broken)  # type: ignore[arg-type]
    one.start()
    one.join(WAIT_S)
    assert [type(error) for error in shown] == [Broken]


# ---- pools of threads ----------------------------------------------------------------------------


def test_a_pool_runs_as_many_calls_at_once_as_it_has_threads() -> None:
    pool = ThreadPool(3, "rose-test")
    together = threading.Barrier(3)
    calls = [pool.submit(together.wait, WAIT_S) for _ in range(6)]
    assert sorted(one.result(WAIT_S) for one in calls) == [0, 0, 1, 1, 2, 2]
    threads = [one for one in threading.enumerate() if one.name == "rose-test"]
    assert len(threads) <= 3
    assert all(one.daemon for one in threads)
    pool.shutdown()
    assert not any(one.is_alive() for one in threads)


def test_a_failed_call_costs_the_pool_nothing() -> None:
    with ThreadPool(1, "rose-test") as pool:
        failing = pool.submit(broken)
        assert pool.submit(lambda: 7).result(WAIT_S) == 7
        with pytest.raises(Broken):
            failing.result(WAIT_S)


def test_a_shut_pool_ends_what_was_submitted_and_refuses_more() -> None:
    pool = ThreadPool(1, "rose-test")
    may_end = threading.Event()
    running, waiting = pool.submit(may_end.wait, WAIT_S), pool.submit(lambda: 7)
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(lambda: 8)
    may_end.set()
    assert (running.result(WAIT_S), waiting.result(WAIT_S)) == (True, 7)
    pool.shutdown()


def test_a_pool_cancels_calls_that_wait_for_a_thread() -> None:
    pool = ThreadPool(1, "rose-test")
    has_begun, may_end = threading.Event(), threading.Event()
    running = pool.submit(lambda: (has_begun.set(), may_end.wait(WAIT_S)))
    waiting = pool.submit(lambda: 7)
    assert has_begun.wait(WAIT_S)
    pool.shutdown(wait=False, cancel_futures=True)
    may_end.set()
    assert waiting.cancelled()
    assert running.result(WAIT_S) == (None, True)


# ---- the threads of a device ---------------------------------------------------------------------


def test_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_run", broken)
    rig = Rig(tmp_path / "log")
    wait_for(lambda: rig.device.gave_back)
    assert rig.device.gave_back == "Broken: a bug of rose"
    rig.close()


def test_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path / "log", lends=False)
    path = tmp_path / "sock"
    rig.device.listen(path)
    monkeypatch.setattr(Listener, "_is_kept", broken)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(str(path))
        caller.send(b"hello")
        wait_for(lambda: rig.device.gave_back)
    with pytest.raises(Unavailable, match="cannot connect to a device"):  # at once
        CoServing.attach(path)
    rig.close()


def test_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path / "log", lends=False)
    rig.device.listen(tmp_path / "sock")
    monkeypatch.setattr(Watcher, "_run", broken)
    with CoServing.attach(tmp_path / "sock") as borrower:
        borrower.rollout(ROLLOUT_KV, limit_bytes=4 * SLAB)
        wait_for(lambda: borrower.gave_back)
        assert borrower.gave_back == "Broken: a bug of rose"
    rig.close()


def test_lending_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LendingLoop, "_run", broken)
    rig = Rig(tmp_path / "log")
    brokered = SimpleNamespace(name="a", device=rig.device)
    loop = LendingLoop([brokered], on_decisions=broken)
    loop.start()
    wait_for(lambda: rig.device.gave_back)
    loop.close()
    rig.close()


# ---- the threads of schedulers and workers -------------------------------------------------------


def test_background() -> None:
    class Work(Background):
        def _work(self) -> None:
            broken()

    one = Work("rose-test")
    one.start()
    wait_for(lambda: one.error)
    assert "a bug of rose" in str(one.error)


def test_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_pause_s", broken)
    deaths: list[tuple[str, bool]] = []
    one = Supervisor(lambda _: ["false"], broken, lambda *death: deaths.append(death))
    wait_for(lambda: deaths)
    one.stop()
    ((reason, is_final),) = deaths
    assert is_final
    assert "a bug of rose" in reason


# ---- the threads of weights ----------------------------------------------------------------------


def test_rounds() -> None:
    stop = threading.Event()
    with Rounds(broken, who="follower", name="rose-test", stop=stop) as rounds:
        rounds.start()
        wait_for(lambda: rounds.failure)
        assert rounds.failure == "the follower has ended: a bug of rose"


def test_span_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MergerThread, "_run", broken)
    with MergerThread(VersionLog(), Signing(b"key")) as maker:
        wait_for(lambda: maker.failure)
        assert maker.failure == "no more deltas are merged: a bug of rose"


def test_chunk_server_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def answer(_: ChunkServer) -> None:
        begun.append(1)
        broken()

    monkeypatch.setattr(ChunkServer, "_answer", answer)
    server = ChunkServer(SimpleNamespace(), TOKEN, "127.0.0.1")
    wait_for(lambda: len(begun) > 2 * ANSWERERS)
    server.close()
    assert server._threads == []
