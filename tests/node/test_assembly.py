"""What a worker's weights are cut by: one row, or a publisher's tensors."""

from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

import rose
from rose.engines.transformers import load_model
from rose.node.assembly import _live_weights
from rose.transfer.wire.remote import RemoteSource
from tests.engines.intact import is_intact


def weights(model, dtype=None):
    return {name: one.detach().to(dtype) for name, one in model.named_parameters()}


def test_weights_follow_what_rose_publish_says_of_their_tensors() -> None:
    import torch

    old, new = (load_model("micro-policy", seed=seed) for seed in (0, 1))
    with rose.publish(weights(new, torch.bfloat16)) as publisher:
        source = RemoteSource(publisher.address, publisher.token)
        live = _live_weights(old, source)
        assert live.cut.layout == source.hello().layout
        assert is_intact(live)
        source.close()
    for (name, one), tensor in zip(sorted(old.named_parameters()), live._parameters, strict=True):
        assert one is tensor, name


def test_a_publisher_of_other_tensors_is_refused() -> None:
    import torch

    model = load_model("micro-policy", seed=0)
    with rose.publish(weights(model, torch.float32)) as publisher:
        source = RemoteSource(publisher.address, publisher.token)
        with pytest.raises(rose.InvalidArgument, match="in bf16, but publishes"):
            _live_weights(model, source)
        source.close()


def test_without_tensors_weights_are_one_row() -> None:
    model = load_model("micro-policy", seed=0)
    nameless = SimpleNamespace(hello=lambda: SimpleNamespace(tensors=(), layout=""))
    rows = _live_weights(model, None), _live_weights(model, nameless)
    assert {one.cut.layout for one in rows} == {rows[0].cut.layout}
