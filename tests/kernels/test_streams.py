"""The torch stream that a handle, a stream or None stands for."""

from typing import Any

import pytest

from rose.errors import InvalidArgument

torch = pytest.importorskip("torch")


class Stream:
    """A stream that is no more than its number."""

    def __init__(self, handle: int, device: Any) -> None:
        self.handle, self.device = handle, device


@pytest.mark.parametrize("wrong", ["main", 1.5, True])
def test_object_that_is_no_stream_is_refused(wrong: Any) -> None:
    from rose.kernels.streams import stream_on

    says = f"^stream must be a handle as a number or a torch stream, got a {type(wrong).__name__}$"
    with pytest.raises(InvalidArgument, match=says):
        stream_on(wrong, torch.device("cuda", 0))


def test_handle_becomes_a_stream_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from rose.kernels.streams import stream_on

    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    found = stream_on(4711, torch.device("cuda", 1))
    assert (found.handle, found.device) == (4711, torch.device("cuda", 1))


@pytest.mark.parametrize("handle", [0, 1])
def test_both_handles_of_the_default_stream_are_recognised(
    monkeypatch: pytest.MonkeyPatch, handle: int
) -> None:
    from rose.kernels.streams import stream_on

    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(0, device))
    assert stream_on(handle, "cuda:1").device == "cuda:1"


def test_none_means_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from rose.kernels.streams import stream_on

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(5, device))
    assert stream_on(None, "cuda:1").device == "cuda:1"


def test_stream_of_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rose.kernels.streams import stream_on

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    elsewhere = Stream(5, torch.device("cuda", 1))
    assert stream_on(elsewhere, torch.device("cuda", 1)) is elsewhere
    with pytest.raises(
        InvalidArgument, match=r"^stream must be on the tensor's cuda:0, got cuda:1$"
    ):
        stream_on(elsewhere, torch.device("cuda", 0))


def test_no_stream_leaves_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from rose.kernels.streams import on_stream

    def switched(_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "stream", switched)
    with on_stream(None, "cuda:0"):
        pass
