"""A sharded trainer sends updates to an engine with fused weights, by a plan from shard maps.

The trainer is a model under FSDP2. The engine has two ranks; its own loader fuses Q, K and V, and
keeps norms in float32. Here all of them are in one process. Run it by `python examples/shards.py`.
"""

from collections.abc import Iterable
from threading import Event

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from rose import transfer
from rose.engines import shards
from rose.transfer.plan import Plan, Replica, SourceRanks, check_coverage, make_plan, traffic

H, FFN, ROWS, RANKS, BF16, WAIT_S = 64, 128, 256, 2, torch.bfloat16, 30.0
SIZES = {"hidden_size": H, "intermediate_size": FFN, "vocab_size": ROWS, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
# The same model with Megatron-Core as its trainer: only the map differs.
MEGATRON = shards.megatron_layout(
    shards.MegatronModel((1,), H, 4, 2, 16, FFN, ROWS, tp=RANKS, is_tied=True)
)
FIRST = transfer.Version("example", 1, 1)
# SHAPES: parameters of one engine rank. FUSED: for each fused tensor of a checkpoint, the parameter
# that holds it, and its first row there.
SHAPES = {"embed_tokens": (ROWS // RANKS, H), "qkv": (64, H), "gate_up": (FFN, H)}
SHAPES |= {"o_proj": (H, H // RANKS), "down_proj": (H, FFN // RANKS)}
NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
FUSED = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 32), "v_proj": ("qkv", 48)}
FUSED |= {"gate_proj": ("gate_up", 0), "up_proj": ("gate_up", FFN // RANKS)}


class Engine(nn.ParameterDict):
    """One rank of an engine."""

    def __init__(self, rank: int) -> None:
        super().__init__({name: torch.zeros(H) for name in NORMS})
        self.update({name: torch.zeros(shape, dtype=BF16) for name, shape in SHAPES.items()})
        self.rank = rank

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Slice and fuse tensors of a checkpoint, as the loaders of vLLM do."""
        for name, loaded in weights:
            kind = name.split(".")[-2]
            parameter, first = FUSED.get(kind, (kind, 0))
            dim = int(kind in {"o_proj", "down_proj"})
            mine = loaded if kind in NORMS else loaded.chunk(RANKS, dim)[self.rank]
            self[parameter].data[first : first + len(mine)].copy_(mine)


def receive(parameters: dict, plan: Plan, rank: int, log: transfer.VersionLog) -> None:
    """Bring a rank's parameters to the next version of the log."""
    views = shards.views_of(parameters, plan.places("engine", rank))
    target, tiles, staged = transfer.ShardViews(views), sorted(views), Event()
    wanted, digest = transfer.Subscription(plan.cut, tiles), target.digests().total
    with transfer.Receiver(log, f"rank {rank}", FIRST, digest, wanted, staged.set) as receiver:
        staged.wait(WAIT_S)
        commit = transfer.Commit(receiver.take_staged(), target, digest, subscribed=tiles)
        receiver.report(commit.run())


def main() -> None:
    """Plan the transfer, train one step, and send the changed weights to the engine."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    model = fully_shard(LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).to(BF16), mesh=mesh)
    named = dict(model.named_parameters())
    trainer = shards.shard_map_of_dtensors(named, rank=0, mesh=mesh)
    start = {name: one.full_tensor().detach().clone() for name, one in named.items()}

    engines = [Engine(rank) for rank in range(RANKS)]
    traced = shards.joined_traces(
        shards.trace_loader(one, one.load_weights, trainer.tensors.values(), rank=one.rank)
        for one in engines
    )
    check_coverage(traced.shards, storages=traced.storages, buffers=traced.excused)
    # The loader converts the norms: ranks receive them on the host, and load them from there.
    norms = {name: start[name] for name in traced.shards.computed}
    hosts = [shards.ComputedTensors(one, one.load_weights, norms) for one in engines]
    replica = Replica("engine", "serving", hosts[0].completed(traced.shards))
    for name, held in (("Megatron", MEGATRON.shards), ("FSDP", trainer)):
        plan = make_plan(SourceRanks("training", held), [replica])
        sent_bytes = dict(traffic(plan, [tile.nbytes for tile in plan.tiles]).sent)
        print(f"{name}: {len(plan.tiles)} tiles; bytes sent by each rank: {sent_bytes}")

    sent = shards.views_of({name: one.to_local() for name, one in named.items()}, plan.sent_from(0))
    shadow = transfer.ShardViews({tile: (one.clone(),) for tile, (one,) in sent.items()})
    log = transfer.VersionLog()
    publisher = transfer.Publisher([transfer.Contributor(shadow, plan.cut)], plan.cut, FIRST, log)
    for engine in engines:
        engine.load_weights(start.items())

    ids = torch.arange(32)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    chunks = publisher.publish(transfer.ShardViews(sent)).chunks
    sizes = [sum(one.nbytes for one in chunks if one.tile == at) for at in range(len(plan.cut))]
    print("bytes of the update on each link:", dict(traffic(plan, sizes).crossing))
    for engine, host in zip(engines, hosts, strict=True):
        receive(shards.parameters_of(engine) | host.parameters, plan, engine.rank, log)
        host.load()
        loaded = Engine(engine.rank)
        loaded.load_weights((name, one.full_tensor()) for name, one in named.items())
        pairs = zip(engine.values(), loaded.values(), strict=True)
        print(f"rank {engine.rank} equals the trainer:", all(torch.equal(*pair) for pair in pairs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
