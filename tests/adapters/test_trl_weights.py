"""The weights that a TRL trainer publishes: those of adapters of PEFT, and of shards of FSDP2."""

import socket
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import rose  # noqa: E402 (torch may be absent)
from rose.adapters.trl import TrlRollouts, trl_weights  # noqa: E402
from rose.adapters.trl.weights import gathered  # noqa: E402

RANKS = 2


class Transfer:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[dict] = []

    def publish(self, weights: dict) -> int:
        self.published.append(weights)
        return 7


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 5), torch.nn.Linear(5, 7, bias=False)]
    return torch.nn.Sequential(*layers)


def _rank(rank: int, port: int) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    for is_sharded in (False, True):
        _publish(rank, is_sharded=is_sharded)
    dist.destroy_process_group()


def _publish(rank: int, *, is_sharded: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole, own = model(), model()
    if is_sharded:
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in own:
            fully_shard(layer, mesh=mesh)
        fully_shard(own, mesh=mesh)
        assert all(one.to_local().numel() < one.numel() for one in own.parameters())
    transfer = Transfer()
    rollouts = TrlRollouts(transfer)
    trainer = SimpleNamespace(
        model=own,
        state=SimpleNamespace(global_step=0),
        accelerator=SimpleNamespace(
            state=SimpleNamespace(),
            is_main_process=rank == 0,
            num_processes=RANKS,
            unwrap_model=lambda model: model,
        ),
    )
    rollouts.publish(trainer)
    assert rollouts._version == 7
    assert len(transfer.published) == (rank == 0)
    for weights in transfer.published:
        assert weights.keys() == dict(whole.named_parameters()).keys()
        for name, tensor in whole.named_parameters():
            assert torch.equal(weights[name], tensor.bfloat16()), name


def test_one_rank_publishes_whole_weights_and_all_know_the_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port,), nprocs=RANKS)


def adapted(**options: object) -> torch.nn.Module:
    peft = pytest.importorskip("peft")
    torch.manual_seed(4)
    base = torch.nn.ModuleDict({"a": model(), "head": torch.nn.Linear(7, 3)}).bfloat16()
    base.forward = lambda row: base["head"](base["a"](row))
    return peft.get_peft_model(base, peft.LoraConfig(init_lora_weights=False, **options))


@pytest.mark.peer
def test_an_adapter_is_merged_into_what_is_published_and_the_model_keeps_its_bits() -> None:
    own = adapted(r=2, target_modules=["a.0", "a.1"], modules_to_save=["head"])
    with torch.no_grad():
        own.base_model.model["head"].modules_to_save["default"].weight.add_(1.0)
    before = {name: tensor.clone() for name, tensor in own.named_parameters()}
    row = torch.randn(1, 6).bfloat16()
    weights = trl_weights(own)
    assert all(torch.equal(before[name], tensor) for name, tensor in own.named_parameters())
    plain = torch.nn.ModuleDict({"a": model(), "head": torch.nn.Linear(7, 3)}).bfloat16()
    assert not plain.load_state_dict(weights).missing_keys
    theirs = plain["head"](plain["a"](row))
    assert torch.allclose(own(row), theirs, rtol=0.05, atol=0.05)
    assert not torch.allclose(own.get_base_model()["a"][0].base_layer.weight, weights["a.0.weight"])
    # What was subtracted after a merge would have been rounded twice.
    layer = own.get_base_model()["a"][0]
    layer.merge()
    layer.unmerge()
    assert not torch.equal(before["base_model.model.a.0.base_layer.weight"], layer.weight)


@pytest.mark.peer
def test_adapters_that_cannot_be_merged_are_refused() -> None:
    own = adapted(r=2, target_modules=["a.0"])
    layer = own.get_base_model()["a"][0].base_layer
    del layer.weight
    layer.weight = torch.nn.Parameter(torch.ones(5, 6, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(rose.InvalidArgument, match=r"quantized .*base_layer.*torch\.uint8|uint8"):
        trl_weights(own)
    own.base_model.__class__ = type("Prompts", (torch.nn.Module,), {})
    with pytest.raises(rose.InvalidArgument, match="type LORA cannot be merged"):
        trl_weights(own)


def test_other_ranks_read_nothing_if_the_weights_are_whole() -> None:
    assert gathered(model(), is_kept=False) == {}


def test_weights_are_published_from_host_memory_wherever_the_trainer_has_moved_them() -> None:
    class OnDevice:
        def detach(self) -> "OnDevice":
            return self

        bfloat16 = detach

        def cpu(self) -> str:
            return "on the host"

    class Moved:
        def named_parameters(self):
            yield "w", OnDevice()

    assert trl_weights(Moved()) == {"w": "on the host"}
