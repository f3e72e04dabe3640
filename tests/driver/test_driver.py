"""The CUDA driver from Python, over the fake: what users read when it is not there, and the GIL."""

import subprocess
import threading
from pathlib import Path

import pytest

from rose._core import (
    CudaDevice,
    CudaDriver,
    CudaEvent,
    CudaGraph,
    CudaStream,
    embedded_kernels,
    probe_gates,
)
from rose.errors import (
    DeadlineExceeded,
    InvalidArgument,
    OutOfMemory,
    RoseError,
    Unavailable,
)
from tests.driver.test_fake import GLOBAL, Raw, elsewhere
from tests.fake_driver import ROOT, Fake, in_child, run_python
from tests.memory.test_cuda_pool import create

LONG_MS = 200_000


# ---- captures of others


@pytest.mark.parametrize("is_own_thread", [True, False])
@in_child()
def test_rose_leaves_a_global_capture_alone(fake: Fake, is_own_thread: bool) -> None:
    """Serving may capture at any time, and torch captures in global mode by default."""
    device = CudaDevice.open(0)
    raw = Raw()
    raw.use_context()

    def use_everything() -> int:
        raw.use_context()
        rollout, serving = (CudaStream.create(device, highest=one) for one in (False, True))
        events = [CudaEvent.create(device, has_timing=True) for _ in range(2)]
        for event in events:
            event.record(rollout.handle)
        assert all(event.is_done() for event in events)
        events[1].since_ms(events[0])
        assert rollout.is_idle()
        probe_gates(
            device,
            borrower_stream=rollout.handle,
            serving_streams=[serving.handle],
            max_connections=None,
            in_one_process=False,
        )
        create(device)
        return raw.exchange_mode(GLOBAL)

    fake.reset()
    captured = raw.begin_capture(GLOBAL)
    assert (use_everything() if is_own_thread else elsewhere(use_everything)) == GLOBAL
    assert raw.end_capture(captured) == 0
    called = {line.split("(")[0] for line in fake.log()}
    assert {"cuStreamQuery", "cuEventQuery", "cuMemHostRegister", "cuMemCreate"} <= called
    assert fake.faults() == []


# ---- opening it


@pytest.mark.parametrize(
    ("spoil", "argument", "sentence"),
    [
        (
            "set_version",
            11080,
            "the CUDA driver supports CUDA 11.8, and rose needs 12.0 or later: update the driver",
        ),
        (
            "missing",
            "cuInit",
            "the CUDA driver (CUDA 13.0) has no cuInit of CUDA 2.0, which rose needs",
        ),
        (
            "set_devices",
            0,
            "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected",
        ),
    ],
)
@in_child()
def test_unusable_driver_is_one_sentence(
    fake: Fake, spoil: str, argument: int | str, sentence: str
) -> None:
    getattr(fake, spoil)(argument)
    with pytest.raises(Unavailable) as caught:
        CudaDriver.open()
    assert str(caught.value) == sentence
    assert fake.faults() == []


def open_in(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python("from rose._core import CudaDriver; CudaDriver.open()", folder=folder)


def test_no_library_is_one_sentence(tmp_path: Path) -> None:
    # On a machine with a driver this file is found before it.
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    done = open_in(tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rose.errors.Unavailable: no CUDA driver: ")
    assert "libcuda.so.1" in last


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "int cuDriverGetVersion(int* version) { *version = 11040; return 0; }",
            "the CUDA driver supports CUDA 11.4, and rose needs 12.0 or later: update the driver",
        ),
        (
            "int nothing;",
            "libcuda.so.1 has no cuGetProcAddress_v2: it is not a driver of CUDA 12.0 or later",
        ),
    ],
)
def test_driver_before_versioned_entries_is_one_sentence(
    tmp_path: Path, source: str, sentence: str
) -> None:
    command = ["g++", "-x", "c", "-shared", "-fPIC", "-", "-o", tmp_path / "libcuda.so.1"]
    subprocess.run(command, input=source, text=True, check=True)
    assert open_in(tmp_path).stderr.splitlines()[-1] == f"rose.errors.Unavailable: {sentence}"


def test_importing_rose_opens_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    code = "import rose, rose._core; print('libcuda' in open('/proc/self/maps').read())"
    assert run_python(code, folder=tmp_path).stdout == "False\n"


# ---- devices


@in_child()
def test_device_is_open_while_anything_uses_it(fake: Fake) -> None:
    device = CudaDevice.open(0)
    assert (device.name, device.ordinal, device.facts.ordinal) == ("Fake GPU 0", 0, 0)
    assert device.priority_range == (0, -5)
    fake.set_memory(1 << 30)
    assert device.memory_info() == (1 << 30, 1 << 30)
    stream = CudaStream.create(device, highest=False)
    del device
    assert fake.live() == ["contexts 1", "streams 1"]
    del stream
    assert fake.live() == []
    assert fake.faults() == []


@in_child()
def test_nonsense_is_refused(fake: Fake) -> None:
    with pytest.raises(InvalidArgument, match="no CUDA device 1: the driver reports 1"):
        CudaDevice.open(1)
    with pytest.raises(InvalidArgument):
        CudaDriver.open().facts(-1)
    with pytest.raises(TypeError):
        CudaStream.create(None, highest=True)  # type: ignore[arg-type]
    stream = CudaStream.create(CudaDevice.open(0), highest=True)
    with pytest.raises(InvalidArgument, match="timeout_ms"):
        stream.wait(timeout_ms=-1)


@in_child()
def test_errors_are_of_the_class_that_fits(fake: Fake) -> None:
    device = CudaDevice.open(0)
    for code, error in [(2, OutOfMemory), (1, InvalidArgument), (801, Unavailable)]:
        fake.fail("cuStreamCreateWithPriority", code=code)
        with pytest.raises(error, match=r"^cuStreamCreateWithPriority: "):
            CudaStream.create(device, highest=True)
    assert fake.live() == ["contexts 1"]


# ---- streams, events, graphs


@in_child()
def test_who_waits_for_a_stream_lets_go_of_the_gil(fake: Fake) -> None:
    device = CudaDevice.open(0)
    stream, event = (
        CudaStream.create(device, highest=True),
        CudaEvent.create(device, has_timing=False),
    )
    fake.hold(stream.handle)
    event.record(stream.handle)
    assert not stream.is_idle()
    assert not event.is_done()
    with pytest.raises(DeadlineExceeded, match="work left after 2 ms"):
        stream.wait(timeout_ms=2)
    waits = fake.calls("cuStreamQuery")

    def release() -> None:
        while fake.calls("cuStreamQuery") < waits + 3:  # the wait is under way
            pass
        fake.release(stream.handle)

    other = threading.Thread(target=release)
    other.start()
    stream.wait(timeout_ms=LONG_MS)
    other.join()
    assert event.is_done()


@in_child()
def test_graph_is_captured_and_launched(fake: Fake) -> None:
    device = CudaDevice.open(0)
    stream = CudaStream.create(device, highest=False)
    CudaGraph.begin_capture(device, stream.handle)
    graph = CudaGraph.end_capture(device, stream.handle)
    graph.launch(stream.handle)
    stream.wait(timeout_ms=LONG_MS)
    CudaGraph.begin_capture(device, stream.handle)
    fake.invalidate(stream.handle)
    with pytest.raises(Unavailable, match=r"^cuStreamEndCapture: .*the capture was invalidated"):
        CudaGraph.end_capture(device, stream.handle)
    graph.launch(stream.handle)
    stream.wait(timeout_ms=LONG_MS)
    del graph, stream, device
    assert fake.live() == []
    assert fake.faults() == []


# ---- what fails in the middle


def use_everything() -> None:
    device = CudaDevice.open(0, driver=CudaDriver.open())
    device.memory_info()
    stream = CudaStream.create(device, highest=device.priority_range[1] < 0)
    event = CudaEvent.create(device, has_timing=True)
    CudaGraph.begin_capture(device, stream.handle)
    CudaGraph.end_capture(device, stream.handle).launch(stream.handle)
    event.record(stream.handle)
    stream.wait(timeout_ms=LONG_MS)
    event.since_ms(event)


@in_child()
def test_nothing_leaks_when_the_nth_driver_call_fails(fake: Fake) -> None:
    raised = 0
    n = 0
    fake.push_foreign()
    while True:
        n += 1
        fake.reset()
        fake.fail("*", nth=n, code=2)
        try:
            use_everything()
        except RoseError:
            raised += 1
        assert (fake.live(), fake.faults(), fake.depth()) == ([], [], 1), f"call {n}"
        assert fake.is_foreign_current()
        if fake.is_fail_pending():
            break
    assert 30 < raised < n


def test_embedded_kernels_have_the_names_of_their_sources() -> None:
    sources = {path.stem for path in ROOT.glob("kernels/*.cu")}
    assert set(embedded_kernels()) in (sources, set())
