"""A porter: what it can reach, who can reach it, and that it is never left behind."""

import ctypes
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rose.errors import CorruptData, DeadlineExceeded, InternalError, InvalidArgument, Unavailable
from rose.transfer.movers.bounce import Bounce
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.kinds import check_offered, module_of
from rose.transfer.movers.porter_process import PorterProcess
from rose.units import MIB
from tests.transfer.movers.conftest import Library, ready, stick
from tests.transfer.worker import LONG_S, eventually

FRAME = bytes(range(256)) * 4096  # 1 MiB
SECRET = "cd" * 32
LISTENING = "0A"


@pytest.fixture
def serving(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[PorterProcess]:
    monkeypatch.setenv("ROSE_TOKEN", SECRET)
    monkeypatch.setenv("ROSE_MANIFEST_KEY", SECRET)
    with ready(library.mover, 4 * MIB) as one:
        yield one


def reader_of(serving: PorterProcess, library: Library) -> PorterProcess:
    return ready(library.mover, MIB, join=serving.introduction)


def test_bytes_cross_from_one_bounce_memory_to_the_other(
    serving: PorterProcess, library: Library
) -> None:
    with reader_of(serving, library) as reader:
        serving.serve(True)
        for offset, nbytes in [(0, 1), (MIB, MIB), (4 * MIB - 7, 7), (3, MIB - 1)]:
            serving.bounce.put(offset, FRAME[:nbytes])
            reader.read(serving.introduction, offset, nbytes, LONG_S)
            assert bytes(reader.bounce.copy(0, nbytes)) == FRAME[:nbytes]


def test_read_outside_of_what_was_offered_is_refused(
    serving: PorterProcess, library: Library
) -> None:
    serving.serve(True)
    for offset in (4 * MIB, -1, 4 * MIB - 1):
        with reader_of(serving, library) as reader, pytest.raises(Unavailable):
            reader.read(serving.introduction, offset, 2, LONG_S)


def test_porter_has_no_secret_and_no_descriptor_of_ours(
    serving: PorterProcess, library: Library, tmp_path: Path
) -> None:
    with (tmp_path / "weights").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        with reader_of(serving, library) as reader:
            for one in (serving, reader):
                at = Path(f"/proc/{one.pid}")
                assert SECRET.encode() not in (at / "environ").read_bytes()
                assert SECRET.encode() not in (at / "cmdline").read_bytes()
                held = {str(fd.readlink()): fd.stat().st_ino for fd in (at / "fd").iterdir()}
                assert not [name for name in held if "weights" in name]
                bounces = {inode for name, inode in held.items() if "rose-bounce" in name}
                assert bounces == {os.fstat(one.bounce.fd).st_ino}


def listening(pid: int | str) -> set[int]:
    """Return the ports that are listened on in the network of a process."""
    found = set()
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_wire_cannot_be_reached_from_here(serving: PorterProcess, library: Library) -> None:
    assert Path(f"/proc/{serving.pid}/ns/net").stat().st_ino == serving.introduction.network
    assert Path("/proc/self/ns/net").stat().st_ino != serving.introduction.network
    ports = listening(serving.pid)
    assert ports, "it listens somewhere"
    for port in ports - listening("self"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), LONG_S)
    with reader_of(serving, library) as reader:
        assert reader.introduction.network == serving.introduction.network
        assert listening(reader.pid) >= ports


def test_process_that_is_another_one_is_not_joined(
    serving: PorterProcess, library: Library
) -> None:
    there = serving.introduction
    with ready(library.mover, MIB) as other:
        for pid, says in [
            (other.pid, "is not the one that offers"),
            (2**22 + 1, "cannot be entered"),  # more than there are
        ]:
            elsewhere = Introduction(pid, there.network, there.base, there.peer)
            with pytest.raises(Unavailable, match=says):
                ready(library.mover, MIB, join=elsewhere)


# TUNSETIFF makes an interface of a descriptor; SIOCSIFFLAGS takes it up.
REACHES = """
import fcntl, os, socket, struct
from rose.transfer.movers.private_network import make_network
inode = make_network()
with open("/dev/net/tun", "rb+", buffering=0) as tun, socket.socket(type=socket.SOCK_DGRAM) as sock:
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"other0", 0x1002))
    print(os.getpid(), inode, flush=True)
    input()
    fcntl.ioctl(sock, 0x8914, struct.pack("16sH22x", b"other0", 1))
    print("up", flush=True)
    input()
"""


@pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="no /dev/net/tun")
def test_network_with_more_than_loopback_is_refused(library: Library) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", REACHES],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        there = Introduction(*map(int, other.stdout.readline().split()), 0, "nobody")
        ready(library.mover, MIB, join=there).close()  # what is down reaches nobody
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "up\n"
        with pytest.raises(Unavailable, match="this network reaches others, by other0"):
            ready(library.mover, MIB, join=there)


def test_read_that_takes_too_long_is_ended_with_its_porter(
    serving: PorterProcess, library: Library
) -> None:
    os.kill(serving.pid, signal.SIGSTOP)
    with reader_of(serving, library) as reader:
        with pytest.raises(DeadlineExceeded, match=r"more than 0\.05 s"):
            reader.read(serving.introduction, 0, MIB, 0.05)
        eventually(lambda: not reader.is_alive)
        with pytest.raises(Unavailable):
            reader.read(serving.introduction, 0, MIB, LONG_S)


def test_close_wakes_who_waits(serving: PorterProcess, library: Library) -> None:
    os.kill(serving.pid, signal.SIGSTOP)
    reader = reader_of(serving, library)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            reader.read(serving.introduction, 0, MIB, LONG_S)
        except Unavailable as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    eventually(reader._hearing.locked)
    reader.close()
    reader.close()
    thread.join(LONG_S)
    assert len(caught) == 1
    assert not reader.is_alive
    for call in (lambda: reader.serve(True), lambda: reader._hear(LONG_S)):
        with pytest.raises(Unavailable):
            call()


# The last one that it names carries, or waits for others to read, or for ever.
PARENT = """
import sys, threading
from rose.transfer.movers.porter_process import PorterProcess
porters = [PorterProcess(sys.argv[1], 1 << 20)]
porters[0].serve(True)
if sys.argv[2] == "reads":
    there = porters[0].introduction
    porters.append(PorterProcess(sys.argv[1], 1 << 20, join=there))
    porters[1].introduction
    threading.Thread(target=porters[1].read, args=(there, 0, 1, 200), daemon=True).start()
print(porters[-1].pid, flush=True)
threading.Event().wait()
"""
# A library whose calls never come back.
STUCK = """
import threading
class TransferEngine:
    def initialize(self, *_): return 0
    def register_memory(self, *_): return 0
    def get_rpc_port(self): return 1
    def transfer_sync_read(self, *_): threading.Event().wait()
"""


def is_ended_with_its_parent(mover: str, what: str) -> bool:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, mover, what],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        porter = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        return bool(select.select([porter], [], [], LONG_S)[0])
    finally:
        os.close(porter)


def test_porter_ends_with_its_parent(library: Library) -> None:
    assert is_ended_with_its_parent(library.mover, "serves")


def test_porter_in_a_call_that_never_ends_does_too(
    private_networks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(STUCK, tmp_path, monkeypatch)
    assert is_ended_with_its_parent("mooncake", "reads")


def install(mooncake: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be Mooncake's engine."""
    (folder / "mooncake").mkdir()
    (folder / "mooncake" / "__init__.py").touch()
    (folder / "mooncake" / "engine.py").write_text(mooncake)
    monkeypatch.syspath_prepend(str(folder))


# It says why it ends after it has hung up.
LATE = """
import sys, threading
def late(_kind, error, _traceback):
    threading.Event().wait(0.5)
    sys.stderr.write(f"{error}")
sys.excepthook = late
raise ImportError("its last words")
"""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("raise ImportError('libibverbs.so.1: no such file')", "libibverbs.so.1: no such file"),
        (LATE, "its last words"),
        ("import os; os.kill(os.getpid(), 9)", "it said nothing"),
        ("class TransferEngine:\n def initialize(self, *_): return -1", "TCP transport"),
    ],
)
def test_library_that_is_broken_says_why(
    private_networks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, says: str
) -> None:
    install(broken, tmp_path, monkeypatch)
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(Unavailable, match=says):
            ready("mooncake", MIB)
    assert open_descriptors() == before


def open_descriptors() -> int:
    gc.collect()  # memory of earlier tests has some
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_library_that_is_not_ready_in_time_is_ended(
    private_networks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stick(tmp_path, monkeypatch)
    with pytest.raises(DeadlineExceeded):
        ready("mooncake", MIB, start_s=0.2)


# Whoever has the other end of its socket too is not ended with it.
FORKS = """
import os, time
if os.fork() == 0:
    os.mkdir("{folder}/forked")
    while not os.path.exists("{folder}/end"):
        time.sleep(0.01)
    os._exit(0)
"""


@pytest.mark.parametrize("library_code", ["", FORKS])
def test_close_ends_a_start_that_never_ends(
    private_networks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library_code: str
) -> None:
    stick(tmp_path, monkeypatch, after=library_code.format(folder=tmp_path))
    porter = PorterProcess("mooncake", MIB)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lambda: porter.introduction) for _ in range(2)]
        eventually(porter._hearing.locked)
        if library_code:
            eventually((tmp_path / "forked").exists)
        porter.close()
        for one in waiting:
            with pytest.raises(Unavailable, match="was closed"):
                one.result(LONG_S)
    (tmp_path / "end").touch()


def test_mover_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.transfer.movers.kinds.find_spec", lambda _: None)
    for mover in ("mooncake", "nixl"):
        with pytest.raises(InvalidArgument, match=rf"pip install 'rose-rl\[{mover}\]'"):
            check_offered([mover], "127.0.0.1:0")
    with pytest.raises(InvalidArgument, match="choose of mooncake, nixl"):
        module_of("carrier pigeon")


def test_bounce_memory_is_never_left() -> None:
    with Bounce(100) as bounce:
        assert bounce.put(99, b"x") == 1
        assert bytes(bounce.copy(98, 2)) == b"\0x"
        for call in (
            lambda: bounce.put(100, b"x"),
            lambda: bounce.put(-1, b"x"),
            lambda: bounce.copy(99, 2),
            lambda: bounce.copy(-1, 1),
        ):
            with pytest.raises(InternalError):
                call()
        copied = bounce.copy(99, 1)
        bounce.put(99, b"y")
        assert bytes(copied) == b"x"
        assert ctypes.string_at(bounce.address + 99, 1) == b"y"


def test_bounce_memory_keeps_its_size_whoever_has_its_descriptor() -> None:
    with Bounce(MIB) as bounce, pytest.raises(PermissionError):
        os.ftruncate(bounce.fd, 0)


def test_porter_that_cannot_be_started_is_unavailable_and_leaves_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", no_more)
    before = open_descriptors()
    with pytest.raises(Unavailable, match="no more processes"):
        PorterProcess(library.mover, MIB)
    assert open_descriptors() == before


@pytest.mark.parametrize("said", [b"[]", b"{", b"[" * 10_000])
def test_porter_that_says_nonsense_is_not_believed(
    library: Library, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(PorterProcess, "_hear", lambda *_: said)
    with pytest.raises(CorruptData, match="no answer"):
        ready(library.mover, MIB)
