"""The fake driver sees what it is there to see, shown by calling it as rose never would."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_driver import Fake, in_child

PAGE = 2 << 20


class Raw:
    """Entry points by name, with 64-bit arguments."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 2000, 0)

    def find(self, name: str, version: int) -> tuple[int, int, int]:
        function, why_not = ctypes.c_void_p(), ctypes.c_int()
        answer = self.library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(function), version, 0, ctypes.byref(why_not)
        )
        return answer, function.value or 0, why_not.value

    def __call__(self, name: str, version: int, *arguments: Any) -> int:
        answer, function, why_not = self.find(name, version)
        assert (answer, why_not) == (0, 0)
        kinds = [ctypes.c_void_p if isinstance(one, int) else type(one) for one in arguments]
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(function)(*arguments)

    def make(self, name: str, version: int, *arguments: Any) -> int:
        out = ctypes.c_void_p()
        assert self(name, version, ctypes.addressof(out), *arguments) == 0
        return out.value or 0

    def use_context(self) -> None:
        self("cuCtxPushCurrent", 4000, self.make("cuDevicePrimaryCtxRetain", 7000, 0))

    def begin_capture(self, mode: int) -> int:
        """Return a stream that is being captured."""
        stream = self.make("cuStreamCreateWithPriority", 5050, 1, 0)
        assert self("cuStreamBeginCapture", 10010, stream, mode) == 0
        return stream

    def end_capture(self, stream: int) -> int:
        return self("cuStreamEndCapture", 10000, stream, ctypes.addressof(ctypes.c_void_p()))

    def exchange_mode(self, mode: int) -> int:
        """Set how captures bind this thread, and return how they did."""
        value = ctypes.c_int(mode)
        assert self("cuThreadExchangeStreamCaptureMode", 10010, ctypes.addressof(value)) == 0
        return value.value


@in_child()
def test_name_is_known_at_its_version_only(fake: Fake) -> None:
    raw = Raw()
    answer, function, why_not = raw.find("cuMemCreate", 10020)
    assert (answer, why_not) == (0, 0)
    assert function
    assert raw.find("cuMemCreate", 10010) == (0, 0, 2)
    assert raw.find("cuMemCreateWrongly", 10020) == (0, 0, 1)
    assert raw.find("cuMemCreate", 14000) == (1, 0, 1)
    assert fake.faults() == ["cuMemCreate is asked for at version 10010"]


GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
UNSUPPORTED, INVALIDATED = 900, 901


def elsewhere(run: Callable[[], int]) -> int:
    """Run in another thread."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(run()))
    thread.start()
    thread.join()
    return answers[0]


@pytest.mark.parametrize(
    ("capture", "thread", "is_forbidden"),
    [
        (GLOBAL, GLOBAL, True),
        (GLOBAL, THREAD_LOCAL, False),
        (GLOBAL, RELAXED, False),
        (THREAD_LOCAL, GLOBAL, False),
        (RELAXED, GLOBAL, False),
    ],
)
@in_child()
def test_global_capture_forbids_queries_to_other_threads(
    fake: Fake, capture: int, thread: int, is_forbidden: bool
) -> None:
    raw = Raw()
    raw.use_context()
    other = raw.make("cuStreamCreateWithPriority", 5050, 1, 0)
    captured = raw.begin_capture(capture)

    def query() -> int:
        raw.use_context()
        assert raw.exchange_mode(thread) == GLOBAL
        return raw("cuStreamQuery", 2000, other)

    assert elsewhere(query) == (UNSUPPORTED if is_forbidden else 0)
    assert raw.end_capture(captured) == (INVALIDATED if is_forbidden else 0)


@pytest.mark.parametrize(
    ("capture", "thread", "is_forbidden"),
    [(GLOBAL, THREAD_LOCAL, True), (THREAD_LOCAL, GLOBAL, True), (GLOBAL, RELAXED, False)],
)
@in_child()
def test_capture_forbids_queries_to_its_own_thread(
    fake: Fake, capture: int, thread: int, is_forbidden: bool
) -> None:
    raw = Raw()
    raw.use_context()
    event = raw.make("cuEventCreate", 2000, 0)
    captured = raw.begin_capture(capture)
    raw.exchange_mode(thread)
    assert raw("cuEventQuery", 2000, event) == (UNSUPPORTED if is_forbidden else 0)
    assert raw.end_capture(captured) == (INVALIDATED if is_forbidden else 0)


def destroy_twice(raw: Raw) -> None:
    raw.use_context()
    stream = raw.make("cuStreamCreateWithPriority", 5050, 1, 0)
    assert raw("cuStreamDestroy", 4000, stream) == 0
    assert raw("cuStreamDestroy", 4000, stream) == 400


def call_without_context(raw: Raw) -> None:
    assert raw("cuStreamQuery", 2000, 0) == 201


def end_the_context_first(raw: Raw) -> None:
    raw.use_context()
    raw.make("cuEventCreate", 2000, 0)
    assert raw("cuDevicePrimaryCtxRelease", 11000, 0) == 0


def free_addresses_in_use(raw: Raw) -> None:
    raw.use_context()
    at = raw.make("cuMemAddressReserve", 10020, PAGE, 0, 0, 0)
    # pinned, exportable, on device 0
    properties = (ctypes.c_int * 8)(1, 1, 1, 0)
    memory = raw.make("cuMemCreate", 10020, PAGE, ctypes.addressof(properties), 0)
    assert raw("cuMemMap", 10020, at, PAGE, 0, memory, 0) == 0
    assert raw("cuMemAddressFree", 10020, at, PAGE) == 1


def reach_memory_that_is_gone(raw: Raw) -> None:
    raw.use_context()
    page = (ctypes.c_uint32 * 16)()
    at = ctypes.addressof(page)
    stream = raw.make("cuStreamCreateWithPriority", 5050, 1, 0)
    assert raw("cuMemHostRegister", 6050, at, 64, 2) == 0
    raw.library.fakecuda_hold(ctypes.c_void_p(stream))
    assert raw("cuMemsetD32Async", 3020, at, 1, 1, stream) == 0
    assert raw("cuMemHostUnregister", 4000, at) == 0
    raw.library.fakecuda_release(ctypes.c_void_p(stream))
    assert page[0] == 0


MISTAKES: dict[str, tuple[Callable[[Raw], None], str]] = {
    "destroy_twice": (destroy_twice, "unknown stream 0x"),
    "call_without_context": (call_without_context, "cuStreamQuery without a current context"),
    "end_the_context_first": (end_the_context_first, "a context ends before event 0x"),
    "free_addresses_in_use": (free_addresses_in_use, "addresses are freed that memory is mapped"),
    "reach_memory_that_is_gone": (
        reach_memory_that_is_gone,
        "a memset reached memory that is gone",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@in_child()
def test_mistake_is_a_fault(fake: Fake, mistake: str) -> None:
    make, says = MISTAKES[mistake]
    make(Raw())
    assert len(fake.faults()) == 1
    assert says in fake.faults()[0]
