"""Gates on real streams: what is closed holds, credit is counted, and nobody else is stopped."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

pytestmark = pytest.mark.gpu

LONG_MS: Final = 10_000.0
SHORT_MS: Final = 1.0
# A close is seen by every device after this.
VISIBLE_S: Final = 0.01


@pytest.fixture(params=["MEMOP", "KERNEL"])
def kind(request: pytest.FixtureRequest, lanes: Any) -> Any:
    from rose._core import GateKind

    return getattr(GateKind, request.param)


@pytest.fixture
def work(lanes: Any) -> Callable[[], Any]:
    return lanes.sleep_ms(SHORT_MS)


def wait_until(condition: Callable[[], bool], *, limit_s: float = 5.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(1e-4)


# ---- the self-test


def test_the_self_test_finds_a_gate_in_the_stream(lanes: Any) -> None:
    from rose._core import GateKind

    found = lanes.gpu.probe(max_connections=None)
    print(found.choice.kind, found.choice.why)
    said = f"memop: {found.memop.why}; kernel: {found.kernel.why}"
    print(said)
    assert found.memop.is_usable or found.kernel.is_usable, said
    first = GateKind.MEMOP if found.memop.is_usable else GateKind.KERNEL
    assert found.choice.kind is first
    for one in (found.memop, found.kernel):
        assert one.why
        assert not one.is_usable or one.wake_us > 0


def test_too_few_connections_are_no_place_for_a_parked_stream(lanes: Any) -> None:
    from rose._core import GateKind

    found = lanes.gpu.probe(max_connections=1)
    assert found.choice.kind is not GateKind.MEMOP
    assert not found.memop.is_usable
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in found.memop.why


# ---- credit and the open bit


def test_no_segment_starts_without_credit(lanes: Any, kind: Any, work: Callable[[], Any]) -> None:
    borrower = lanes.graph_borrower(kind, window=8)
    borrower.half.begin_step()
    borrower.open(2)
    for _ in range(5):
        assert borrower.push(work)
    wait_until(lambda: borrower.has_ended(2))
    time.sleep(VISIBLE_S)
    assert borrower.host.passed == 2
    borrower.host.grant(1)
    wait_until(lambda: borrower.has_ended(3))
    time.sleep(VISIBLE_S)
    assert borrower.host.passed == 3
    assert borrower.half.enqueued == 5
    borrower.host.grant(100)
    borrower.drain()
    assert borrower.host.passed == 5


def test_a_closed_gate_holds_what_is_in_the_stream(lanes: Any, kind: Any) -> None:
    borrower = lanes.borrower(kind, window=2)
    for _ in range(3):
        with borrower.parked():
            waiting = borrower.host.passed
            time.sleep(VISIBLE_S)
            assert borrower.host.passed == waiting
            assert not lanes.gpu.rollout.is_idle()
        # The end of the last segment was recorded a moment ago.
        wait_until(lanes.gpu.rollout.is_idle)


def test_no_segment_is_added_while_the_gate_is_closed(
    lanes: Any, kind: Any, work: Callable[[], Any]
) -> None:
    from rose._core import Verdict

    borrower = lanes.graph_borrower(kind, window=2)
    borrower.half.begin_step()
    assert borrower.half.pass_(timeout_ms=20) == Verdict.TIMED_OUT
    assert borrower.half.enqueued == 0
    borrower.open()
    assert borrower.push(work)
    borrower.drain()


def test_what_has_settled_can_be_waited_for(lanes: Any, kind: Any) -> None:
    import torch

    from rose._core import Verdict

    borrower = lanes.borrower(kind, window=4)
    total = torch.zeros(1, device=lanes.torch_device)
    torch.cuda.synchronize()
    borrower.half.begin_step()
    borrower.open()

    def segment() -> None:
        lanes.sleep_ms(SHORT_MS)()
        total.add_(1)

    with torch.cuda.stream(lanes.rollout):
        segment()  # the first launch of a kernel takes its own time
    lanes.rollout.synchronize()
    for _ in range(4):
        assert borrower.push(segment)
    assert borrower.half.settle(timeout_ms=LONG_MS) == Verdict.PASSED
    with torch.cuda.stream(lanes.rollout):
        assert total.item() == 5
    borrower.drain()


# ---- abort, shut-down, wrap


def test_an_abort_drains_what_is_in_the_stream(
    lanes: Any, kind: Any, work: Callable[[], Any]
) -> None:
    from rose._core import Verdict

    borrower = lanes.borrower(kind, window=4)
    borrower.half.begin_step()
    borrower.open()
    for _ in range(3):
        assert borrower.push(work)
    borrower.close()
    assert borrower.host.abort_step()
    assert borrower.half.pass_(timeout_ms=LONG_MS) == Verdict.ABORTED
    assert borrower.host.passed == 3
    wait_until(lanes.gpu.rollout.is_idle)
    borrower.half.leave()
    borrower.half.end_step()
    # The next step starts afresh, once the gate is open again.
    borrower.half.begin_step()
    assert borrower.half.pass_(timeout_ms=20) == Verdict.TIMED_OUT
    borrower.open()
    assert borrower.push(work)
    borrower.drain()
    assert borrower.host.passed == 4


def test_a_gate_that_is_shut_down_lets_everybody_go(
    lanes: Any, kind: Any, work: Callable[[], Any]
) -> None:
    borrower = lanes.borrower(kind, window=4)
    borrower.open()
    answers: list[bool] = []

    def run() -> None:
        borrower.half.begin_step()
        while borrower.push(work, timeout_ms=LONG_MS):
            pass
        answers.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: borrower.host.passed > 3)
    borrower.close()
    borrower.host.shut_down()
    thread.join(LONG_MS * 1e-3)
    assert not thread.is_alive()
    assert answers == [True]
    wait_until(lanes.gpu.rollout.is_idle)


def test_numbers_may_wrap(lanes: Any, kind: Any, work: Callable[[], Any]) -> None:
    import torch

    from rose._core import HostGate, Verdict

    first = (1 << 32) - 3
    gate = HostGate(first_segment=first)
    half = lanes.gpu.borrower_gate(gate, kind, window=8)
    half.begin_step()
    gate.grant(6)
    assert gate.open(gate.close_epoch)
    with torch.cuda.stream(lanes.rollout):
        for _ in range(8):
            assert half.pass_(timeout_ms=LONG_MS) == Verdict.PASSED
            work()
    wait_until(lambda: gate.passed == (first + 6) % (1 << 32))
    time.sleep(VISIBLE_S)
    assert gate.passed == (first + 6) % (1 << 32)
    gate.grant(100)
    assert half.settle(timeout_ms=LONG_MS) == Verdict.PASSED
    assert gate.passed == (first + 8) % (1 << 32)
    half.leave()
    half.end_step()


# ---- graphs


class Captured:
    """A graph of segments that each add one to a number, with a gate before each."""

    def __init__(self, lanes: Any, borrower: Any, segments: int) -> None:
        import torch

        from rose._core import CudaGraph

        self.total = torch.zeros(1, device=lanes.torch_device)
        device, stream = lanes.gpu.device, lanes.gpu.rollout.handle
        work = lanes.sleep_ms(SHORT_MS / 4)
        with torch.cuda.stream(lanes.rollout):
            work()
            self.total.add_(1)  # loads both kernels: a capture must not
        lanes.rollout.synchronize()
        self.total.zero_()
        torch.cuda.synchronize()
        CudaGraph.begin_capture(device, stream)
        with torch.cuda.stream(lanes.rollout):
            for _ in range(segments):
                borrower.half.insert(stream)
                work()
                self.total.add_(1)
        self.graph = CudaGraph.end_capture(device, stream)
        self._stream = lanes.serving
        assert self.value() == 0  # the first time takes pinned memory

    def value(self) -> float:
        """Read it past the borrower's stream, which may be parked."""
        import torch

        with torch.cuda.stream(self._stream):
            return float(self.total.item())


def test_gates_inside_a_graph_count_and_hold(lanes: Any, kind: Any) -> None:
    from rose._core import Verdict

    borrower = lanes.graph_borrower(kind, window=8)
    captured = Captured(lanes, borrower, 6)
    borrower.half.begin_step()
    borrower.open(2)
    assert borrower.half.launch(captured.graph, timeout_ms=LONG_MS) == Verdict.PASSED
    wait_until(lambda: captured.value() == 2)
    time.sleep(VISIBLE_S)
    assert captured.value() == 2
    assert borrower.host.passed == 2
    borrower.host.grant(2)
    wait_until(lambda: captured.value() == 4)
    borrower.close()
    borrower.host.grant(2)  # credit alone opens nothing
    time.sleep(VISIBLE_S)
    assert captured.value() == 4
    borrower.open()
    assert borrower.half.settle(timeout_ms=LONG_MS) == Verdict.PASSED
    wait_until(lambda: captured.value() == 6)
    assert borrower.host.passed == 6
    borrower.half.leave()
    borrower.half.end_step()


def test_a_graph_can_be_launched_again(lanes: Any, kind: Any) -> None:
    from rose._core import Verdict

    borrower = lanes.graph_borrower(kind, window=8)
    captured = Captured(lanes, borrower, 3)
    borrower.half.begin_step()
    borrower.open()
    for _ in range(10):
        assert borrower.half.launch(captured.graph, timeout_ms=LONG_MS) == Verdict.PASSED
    assert borrower.half.settle(timeout_ms=LONG_MS) == Verdict.PASSED
    wait_until(lambda: captured.value() == 30)
    assert borrower.host.passed == 30
    borrower.half.leave()
    borrower.half.end_step()


# ---- serving


def test_a_parked_borrower_does_not_stop_serving(lanes: Any, kind: Any) -> None:
    import torch

    left = torch.randn(512, 512, device=lanes.torch_device)
    out = torch.empty_like(left)
    torch.cuda.synchronize()
    with torch.cuda.stream(lanes.serving):
        torch.mm(left, left, out=out)  # loads what it needs before anything is parked
    lanes.serving.synchronize()
    borrower = lanes.borrower(kind, window=2)
    done = torch.cuda.Event()
    with borrower.parked():
        for _ in range(50):
            with torch.cuda.stream(lanes.serving):
                torch.mm(left, left, out=out)
                done.record()
            wait_until(done.query)
        assert borrower.host.passed == borrower.pushed - 1
    assert torch.allclose(out, left @ left, rtol=1e-3, atol=1e-2)


def test_serving_has_the_higher_priority(lanes: Any) -> None:
    lowest, highest = lanes.gpu.device.priority_range
    assert highest < lowest
    assert lanes.gpu.serving.priority == highest
    assert lanes.gpu.rollout.priority == lowest


def test_the_host_gate_works_on_a_stream(lanes: Any, work: Callable[[], Any]) -> None:
    from rose._core import GateKind, Verdict

    borrower = lanes.borrower(GateKind.HOST, window=1)
    borrower.half.begin_step()
    borrower.open()
    for _ in range(3):
        assert borrower.push(work)
    borrower.close()
    assert borrower.half.pass_(timeout_ms=50) == Verdict.TIMED_OUT
    assert borrower.host.passed == 3
    assert lanes.gpu.rollout.is_idle()  # a closed HOST gate leaves nothing in the stream
    borrower.half.leave()
    borrower.half.end_step()
