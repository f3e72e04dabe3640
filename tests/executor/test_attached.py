"""A borrower in a process of its own, on the real core."""

import gc
import json
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rose._core import HostGate, Process
from rose.errors import InvalidArgument, Unavailable
from rose.executor import CoServing
from rose.executor.channel import Channel
from rose.executor.harm import Readmission
from rose.executor.messages import AskGrow, AskLedger, Hello, Ledger, Rejected, decode, encode
from rose.whole_file import lock
from tests.executor.conftest import ROLLOUT_KV, SERVING_KV, SLAB, SLABS, Rig
from tests.forks import beside_helper
from tests.waiting import LONG_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "limit_bytes": SLABS * SLAB,
    "block_tokens": ROLLOUT_KV.block_tokens,
    "bytes_per_token": ROLLOUT_KV.bytes_per_token,
}
BLOCKS_PER_SLAB = 8


class Child:
    """The program of `tenant_program.py`; every wait for it has a deadline."""

    def __init__(self, path: str, **settings) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.executor.tenant_program",
                path,
                json.dumps(SETTINGS | settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.answer()

    def answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(LONG_S), "the borrower's process says nothing"
        line = self.process.stdout.readline()
        assert line, "the borrower's process ended"
        return json.loads(line)

    def do(self, command: str, *arguments):
        self.say(command, *arguments)
        return self.answer()

    def say(self, command: str, *arguments) -> None:
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class RemoteRig(Rig):
    """A device that listens, and the processes that attached."""

    def __init__(self, folder: Path, **knobs) -> None:
        super().__init__(folder / "log", lends=False, **knobs)
        self.path = str(folder / "device.sock")
        self.listener = self.device.listen(self.path)
        self.children: list[Child] = []

    def attach(self, **settings) -> Child:
        """Attach a borrower; the pause after the borrowers that this rig has killed is skipped."""
        wait_for(lambda: self.listener.tenancy is None)
        self.device.lender.readmission = Readmission(self.device.lender.clock)
        self.children.append(Child(self.path, **settings))
        return self.children[-1]

    def slabs(self) -> tuple[int, int]:
        """Slabs: the borrower's, quarantined."""
        now = self.device.arbiter.snapshot()
        return (now.partitions[1].held if len(now.partitions) > 1 else 0), now.quarantined

    def close(self) -> None:
        for child in self.children:
            child.end()
        wait_for(lambda: self.listener.tenancy is None)
        super().close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path)
    yield made
    made.close()


def test_slabs_leave_in_the_order_that_the_borrower_ranked_them(rig: RemoteRig) -> None:
    child = rig.attach()
    child.do("borrow", 4 * BLOCKS_PER_SLAB)  # all of them full: only the ranks tell them apart
    first, second, third, fourth = child.do("lent")
    child.do("rank", [third, first, fourth, second])
    for gone in ({third}, {third, first}, {third, first, fourth}):
        rig.device.lender.take_back(1)
        wait_for(lambda gone=gone: rig.slabs() == (4 - len(gone), 0))
        assert {first, second, third, fourth} - set(child.do("lent")) == gone


def test_idle_slabs_come_home_from_a_process_that_is_stopped(rig: RemoteRig) -> None:
    child = rig.attach()
    child.do("borrow", 8 * BLOCKS_PER_SLAB)
    child.do("give")
    child.send(signal.SIGSTOP)
    held = rig.slabs()[0]
    assert held >= 8
    everything = SLABS * SERVING_KV.blocks_per_slab(SLAB)
    assert rig.serving.ensure(everything)
    assert rig.slabs() == (0, 0)
    child.send(signal.SIGCONT)
    wait_for(lambda: child.do("state")["free"] == 0)
    assert child.process.poll() is None


def test_blocks_in_use_come_home_when_the_borrower_is_told(rig: RemoteRig) -> None:
    child = rig.attach()
    child.do("borrow", 8 * BLOCKS_PER_SLAB)
    everything = SLABS * SERVING_KV.blocks_per_slab(SLAB)
    assert rig.serving.ensure(everything)
    assert rig.slabs() == (0, 0)
    state = child.do("state")
    assert state["held"] == 0
    assert state["demands"] >= 1


def test_a_step_that_pins_what_serving_needs_is_aborted_in_its_process(rig: RemoteRig) -> None:
    child = rig.attach()
    child.do("borrow", 8 * BLOCKS_PER_SLAB)
    assert child.do("begin_step")
    rig.serving.arrived("urgent", prompt_tokens=16)
    child.do("go_on")
    everything = SLABS * SERVING_KV.blocks_per_slab(SLAB)
    assert rig.serving.ensure(everything)
    assert child.do("end_step") == "aborted"
    rig.serving.finished("urgent")
    assert rig.slabs() == (0, 0)


@contextmanager
def cgroup_of(process: int) -> Iterator[Path | None]:
    """A cgroup (v2) for this process and what it starts; None where we may make none."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    roots = [Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2"]
    made = next((root / f"rose-test-{process}" for root in roots), None)
    try:
        if made is not None:
            made.mkdir()
            (made / "cgroup.procs").write_text(str(process))
    except OSError:
        made = None
    yield made
    if made is not None:
        wait_for(lambda: not (made / "cgroup.procs").read_text())
        made.rmdir()


def test_a_late_borrower_is_killed_and_its_helpers_die_with_its_cgroup(tmp_path: Path) -> None:
    """And where it has none of its own, it dies alone: others may be in there."""
    made = RemoteRig(tmp_path, revoke_ms=200.0)
    try:
        child = made.attach()
        with cgroup_of(child.process.pid) as own:
            helper = Process.open(child.do("start_helper"))
            child.do("borrow", 8 * BLOCKS_PER_SLAB)
            assert child.do("begin_step")  # It never comes to its gate.
            wait_for(lambda: made.serving.ensure(SLABS * SERVING_KV.blocks_per_slab(SLAB)))
            assert child.process.wait(LONG_S) == -signal.SIGKILL
            if own is None:
                assert helper.is_alive
            else:
                wait_for(lambda: not helper.is_alive)
            if helper.is_alive:
                os.kill(helper.pid, signal.SIGKILL)
        wait_for(lambda: made.slabs() == (0, 0))
        assert made.device.gave_back is None
        assert made.attach().do("state")["gave_back"] is None  # A successor may come.
    finally:
        made.close()


def test_a_frozen_borrower_loses_its_leases_and_why_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = RemoteRig(tmp_path, lease_ttl_ms=300.0, revoke_ms=200.0)
    try:
        child = made.attach()
        child.do("borrow", 4 * BLOCKS_PER_SLAB)
        time.sleep(0.6)
        assert made.slabs()[0] >= 4  # Idle, and alive.
        assert child.do("begin_step")
        child.send(signal.SIGSTOP)
        assert child.process.wait(LONG_S) == -signal.SIGKILL
        wait_for(lambda: made.slabs() == (0, 0))
        wait_for(lambda: made.device.reading().kills)
        (why,) = made.device.reading().kills
        assert f"process {child.process.pid}, was killed: its steps still used slabs (4) " in why
        assert "with a deadline of 200 ms; cause: the lease was not renewed; its last sign" in why
        assert [one.getMessage() for one in caplog.records] == [f"rose: {why}"]
    finally:
        made.close()


def test_long_work_of_the_host_outside_the_model_costs_no_life_and_no_token(
    tmp_path: Path,
) -> None:
    """As when a sampler is compiled: the GIL is held for several TTLs of the leases."""
    made = RemoteRig(tmp_path, lease_ttl_ms=200.0, revoke_ms=400.0)
    everything = SLABS * SERVING_KV.blocks_per_slab(SLAB)
    try:
        child = made.attach()
        child.say("generate", 200, 3, 0.8)
        for _ in range(2):
            wait_for(lambda: made.slabs()[0] >= 4 and made.device.gate.passed >= 3)
            time.sleep(0.4)  # Now the host works, or soon does: each must do.
            assert made.serving.ensure(everything)
            assert made.slabs() == (0, 0)
            made.serving.settle()
        answer = child.answer()
        assert answer["gave_back"] is None
        assert sorted(set(answer["computed"])) == [200, 201, 202]
        assert child.process.poll() is None
        assert made.device.reading().kills == ()
    finally:
        made.close()


def test_one_borrower_at_a_time(rig: RemoteRig) -> None:
    rig.attach()
    with (
        CoServing.attach(rig.path) as other,
        pytest.raises(Unavailable, match="one borrower, and this device has one"),
    ):
        other.rollout(ROLLOUT_KV, limit_bytes=SLAB)


def test_silent_connections_hold_nobody_up(rig: RemoteRig) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for _ in range(120)
        ]
        for one in silent:
            one.settimeout(LONG_S)
            one.connect(rig.path)
        began = time.monotonic()
        with CoServing.attach(rig.path) as other:
            assert isinstance(other.rollout(ROLLOUT_KV, limit_bytes=SLAB).kv.blocks_per_slab, int)
            assert time.monotonic() - began < 20  # Each used to take two seconds.
        assert silent[0].recv(1) == b""  # The oldest are closed,
        silent[-1].send(encode(AskLedger()))  # and the others answered whenever they ask.
        assert isinstance(decode(silent[-1].recv(1 << 16)), Ledger)
        wait_for(lambda: rig.listener.tenancy is None)
    wait_for(lambda: not rig.listener._silent)


NOISE = (
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    encode(Ledger(1, "cpu")),
    b"\x92\xa2\xff\xfe\x80",  # a kind that is no text
    b"\x92\xa5Hello" + b"\x91" * 10_000,  # deeper than anybody reads
    encode(AskGrow(1)),
)


def test_noise_at_the_socket_changes_nothing(rig: RemoteRig) -> None:
    for noise in NOISE:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.connect(rig.path)
            caller.send(noise)
    assert rig.attach().do("borrow", 1) == 1


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_leaks_from_many_tenants(rig: RemoteRig) -> None:
    def attach_once() -> None:
        wait_for(lambda: rig.listener.tenancy is None)
        with CoServing.attach(rig.path) as device:
            lane = device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
            wait_for(lambda: lane.ensure(1))

    attach_once()
    wait_for(lambda: rig.listener.tenancy is None)
    before = descriptors()
    for _ in range(20):
        attach_once()
    wait_for(lambda: rig.listener.tenancy is None)
    wait_for(lambda: descriptors() <= before)  # `before` may count some that were just closing
    assert rig.slabs() == (0, 0)


def test_nothing_leaks_when_a_device_closes_before_its_borrower_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The borrower is of this process, so it is never killed: it takes for ever to die."""
    monkeypatch.setattr("rose.executor.listener._PARTING_MS", 1.0)

    def serve(folder: Path) -> None:
        folder.mkdir()
        made = Rig(folder / "log", lends=False, revoke_ms=100.0)
        path = folder / "device.sock"
        listener = made.device.listen(path)
        with CoServing.attach(path) as device:
            lane = device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
            wait_for(lambda: lane.ensure(1))
            pin = lane.kv.allocator.pin_slabs(lane.slabs())
            tenancy = listener.tenancy
            assert tenancy is not None
            made.device.close()
            with pytest.raises(InvalidArgument, match=r"after its close\(\)"):
                _ = tenancy.tenant.pid  # Its watch was joined by who started it.
            assert made.device.arbiter.snapshot().partitions[1].quarantined > 0
            lane.kv.allocator.unpin(pin)
        assert listener.tenancy is None

    serve(tmp_path / "first")
    before = descriptors()
    for round_ in range(3):
        serve(tmp_path / str(round_))
    wait_for(lambda: descriptors() <= before)  # `before` may count some that were just closing


def test_the_ledger_can_be_looked_at(rig: RemoteRig) -> None:
    with Channel.connect(rig.path, timeout_s=LONG_S) as channel:
        channel.send(AskLedger())
        answer, descriptors = channel.receive(timeout_s=LONG_S)
    assert answer == Ledger(os.getpid(), "cpu", refusals=answer.refusals, wait_budget_ms=1000.0)
    assert answer.refusals["slo_at_risk"] == 0
    assert len(descriptors) == 1
    os.close(descriptors[0])


def test_when_serving_closes_the_device_the_borrower_hears_it(rig: RemoteRig) -> None:
    child = rig.attach()
    child.do("borrow", BLOCKS_PER_SLAB)
    assert child.do("begin_step")
    child.do("go_on")
    rig.device.close()
    how = child.do("end_step")
    assert how == "aborted" or "closed" in how  # whichever of the two it reads first
    wait_for(lambda: child.do("state")["is_closed"])


def abandon(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "device.sock"
    abandon(path)
    made = RemoteRig(tmp_path)
    made.close()
    assert not path.exists()


def test_only_an_abandoned_socket_of_this_user_is_replaced(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    abandon(tmp_path / "abandoned")
    (tmp_path / "link").symlink_to("abandoned")
    (tmp_path / "dangling").symlink_to("nowhere")
    abandon(tmp_path / "foreign")
    made = Rig(tmp_path / "log", lends=False)
    for name in ("file", "folder", "fifo", "link", "dangling", "foreign"):
        path = tmp_path / name
        before = path.lstat()
        if name == "foreign":
            monkeypatch.setattr("rose.executor.listener.lock", lambda path: path.open("w+b"))
            monkeypatch.setattr("rose.executor.listener.os.geteuid", lambda: os.getuid() + 1)
        with pytest.raises(Unavailable, match="in use"):
            made.device.listen(path)
        assert path.lstat() == before
    assert (tmp_path / "file").read_bytes() == b"precious"
    made.close()


def test_a_socket_whose_device_is_about_to_listen_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "device.sock"
    abandon(path)  # As between `bind` and `listen`, when connections are refused too.
    made = Rig(tmp_path / "log", lends=False)
    with lock(tmp_path / "device.sock.lock"), pytest.raises(Unavailable, match="in use"):
        made.device.listen(path)
    assert path.is_socket()
    made.close()


def set_aside(path: Path, what: str) -> None:
    match what:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            (path.parent / "victim").write_text("precious")
            path.symlink_to(path.parent / "victim")


@pytest.mark.parametrize("what", ["pipe", "folder", "link"])
@pytest.mark.parametrize("suffix", [".lock", ".limit"])
def test_a_file_beside_the_socket_that_is_not_regular_is_refused(tmp_path, suffix, what) -> None:
    set_aside(tmp_path / f"device.sock{suffix}", what)
    rig = Rig(tmp_path / "log", lends=False)
    with pytest.raises(Unavailable, match="must be a regular file of this user"):
        rig.device.listen(tmp_path / "device.sock")
    assert not (tmp_path / "device.sock").exists()
    if what == "link":
        assert (tmp_path / "victim").read_text() == "precious"
    rig.close()


@pytest.mark.parametrize("suffix", [".lock", ".limit"])
def test_a_file_of_another_user_beside_the_socket_is_refused(tmp_path, monkeypatch, suffix) -> None:
    (tmp_path / f"device.sock{suffix}").write_text("1")
    rig = Rig(tmp_path / "log", lends=False)
    monkeypatch.setattr("rose.whole_file.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable, match="must be a regular file of this user"):
        rig.device.listen(tmp_path / "device.sock")
    rig.close()


def test_a_device_that_has_no_descriptor_left_to_listen_is_unavailable(tmp_path) -> None:
    rig = Rig(tmp_path / "log", lends=False)
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for further in range(12):  # Each of the descriptors that listening needs is missing in turn.
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + further, limits[1]))
        try:
            with pytest.raises(Unavailable, match="Too many open files"):
                rig.device.listen(tmp_path / "device.sock")
        except pytest.fail.Exception:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert descriptors() == before
    assert further > 3
    rig.close()


SERVING = """
import sys
from pathlib import Path
from tests.executor.conftest import Rig

rig = Rig(Path(sys.argv[1]) / "log-of-the-killed", lends=False)
rig.device.listen(Path(sys.argv[1]) / "device.sock")
"""


@contextmanager
def outlived(folder: Path) -> Iterator[int]:
    """Yield the pid of a killed serving process whose forked helper lives on."""
    with beside_helper(SERVING, folder) as serving:
        serving.kill()
        serving.wait(LONG_S)
        yield serving.pid


def test_a_helper_that_outlives_serving_keeps_neither_the_socket_nor_its_lock(tmp_path) -> None:
    with outlived(tmp_path) as pid:
        with pytest.raises(Unavailable, match=f"listens at .* any more: process {pid} has ended"):
            Channel.connect(tmp_path / "device.sock", timeout_s=LONG_S)
        restarted = RemoteRig(tmp_path)
        restarted.attach().do("borrow", BLOCKS_PER_SLAB)
        restarted.close()
    assert not (tmp_path / "device.sock").exists()


def test_a_forked_child_that_closes_its_copy_leaves_the_socket_to_its_parent(rig: RemoteRig):
    listener = rig.device._listener
    child = os.fork()
    if child == 0:
        try:
            listener.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rig.attach().do("borrow", BLOCKS_PER_SLAB)
    with pytest.raises(BlockingIOError):
        lock(Path(f"{rig.path}.lock"))


def test_another_user_gets_a_sentence(rig: RemoteRig, monkeypatch) -> None:
    monkeypatch.setattr(Channel, "peer", lambda _: (os.getpid(), 4321))
    with Channel.connect(rig.path, timeout_s=LONG_S) as channel:
        channel.send(AskLedger())
        hung_up = select.poll()
        hung_up.register(channel, select.POLLRDHUP)
        assert hung_up.poll(LONG_S * 1000)
        answer, _ = channel.receive(timeout_s=LONG_S)
    assert isinstance(answer, Rejected)
    assert "user 4321 may not use a device of user" in answer.sentence


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_socket_needs_a_name(tmp_path: Path, path: str) -> None:
    rig = Rig(tmp_path / "log", lends=False)
    with pytest.raises(InvalidArgument, match="must not be empty or have a zero byte, got"):
        rig.device.listen(path)
    rig.close()


def test_nobody_listens_twice_at_one_place(rig: RemoteRig, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    other = Rig(second / "log", lends=False)
    with pytest.raises(Unavailable, match="in use"):
        other.device.listen(rig.path)
    other.close()


def test_the_end_of_one_borrower_leaves_the_gate_to_the_next(rig: RemoteRig) -> None:
    with Channel.connect(rig.path, timeout_s=LONG_S) as channel:
        channel.send(Hello(ROLLOUT_KV, SLAB))
        answer, descriptors = channel.receive(timeout_s=LONG_S)
        gate = HostGate.attach(descriptors[answer.descriptors.index("gate")])
        for descriptor in descriptors:
            os.close(descriptor)
        gate.abandon()
        assert gate.is_shut_down()
    successor = rig.attach()
    assert successor.do("borrow", BLOCKS_PER_SLAB) == BLOCKS_PER_SLAB
    assert successor.do("begin_step")


def test_an_admission_that_fails_leaves_its_place_to_the_next(
    rig: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**fields: object) -> None:
        raise Unavailable("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr("rose.executor.welcome.Welcome", fail)
        with CoServing.attach(rig.path) as other, pytest.raises(Unavailable):
            other.rollout(ROLLOUT_KV, limit_bytes=SLAB)
    assert rig.attach().do("borrow", 1) == 1
    assert len(rig.device.arbiter.snapshot().partitions) == 2
