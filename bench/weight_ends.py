"""A trainer and an engine of named weights, in two processes, for `rose.publish` and its peers.

The weights have the shapes of a real model and repeat a pattern, so that neither end reads a file.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

import rose
from bench.codecs import compress, decompress
from bench.netns import Link
from bench.refit_peers import Bits, VerlLike
from bench.refit_ranks import DEADLINE_S, Rank
from bench.versions import PATTERN, two_versions
from rose.errors import check
from rose.transfer.codec.operations import digest
from rose.units import KIB

Shapes = Mapping[str, tuple[int, ...]]
Call = tuple[Any, ...]  # the name of a method of an end, and its arguments

_TIED: Final = ("model.embed_tokens.weight", "lm_head.weight")
_VOCABULARY: Final = 151_936


def qwen(layers: int, hidden: int, ffn: int, keys: int) -> Shapes:
    """Return the tensors of a model of the family Qwen2.5 with tied embeddings."""
    shapes: dict[str, tuple[int, ...]] = {_TIED[0]: (_VOCABULARY, hidden)}
    for layer in range(layers):
        own = {
            **{f"self_attn.{one}_proj.weight": (keys, hidden) for one in "kv"},
            **{f"self_attn.{one}_proj.bias": (keys,) for one in "kv"},
            **{f"self_attn.{one}_proj.weight": (hidden, hidden) for one in "qo"},
            "self_attn.q_proj.bias": (hidden,),
            **{f"mlp.{one}_proj.weight": (ffn, hidden) for one in ("gate", "up")},
            "mlp.down_proj.weight": (hidden, ffn),
            **{f"{one}_layernorm.weight": (hidden,) for one in ("input", "post_attention")},
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes | {"model.norm.weight": (hidden,)}


def small_tensors(count: int) -> Shapes:
    """Return many tensors of 16 elements."""
    return {f"layers.{number}.scale": (16,) for number in range(count)}


def flip(rows: Iterable[Bits], patch: Bits) -> None:
    """XOR a patch that repeats into all rows, one after the other."""
    at = 0
    for row in rows:
        done = 0
        while done < len(row):
            some = row[done : done + len(patch) - at]
            some ^= patch[at : at + len(some)]
            done, at = done + len(some), (at + len(some)) % len(patch)


@cache
def patch_of(density: float) -> Bits:
    """Return the patch of a pattern whose share `density` changes; 1 changes every element."""
    if density == 1.0:
        return np.ones(PATTERN, np.uint16)
    versions = two_versions(PATTERN, density=density)
    return versions.old ^ versions.new


def status_bytes(field: str) -> int:
    """Return a figure of this process's memory in bytes, such as VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{field}:"))


class _End:
    """What both ends have: the tensors, their costs, and gloo."""

    def __init__(self, shapes: Shapes, meeting: str, rank: int, device: str) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = device
        import torch
        import torch.distributed

        self.torch = torch
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
        )
        self.tensors = {
            name: torch.zeros(one, dtype=torch.bfloat16) for name, one in shapes.items()
        }
        self.bits: list[Bits] = [
            one.view(torch.int16).numpy().reshape(-1).view(np.uint16)
            for one in self.tensors.values()
        ]
        self.model_bytes = sum(one.nbytes for one in self.bits)
        if _TIED[0] in self.tensors:
            self.tensors[_TIED[1]] = self.tensors[_TIED[0]]

    def cpu_s(self) -> float:
        return time.process_time()

    def forget_peak(self) -> None:
        self._resting_bytes = status_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", "ascii")

    def memory(self) -> tuple[int, int, int]:
        """Return the peak since `forget_peak`, the memory at that moment, and the weights."""
        return status_bytes("VmHWM"), self._resting_bytes, self.model_bytes

    def actual(self) -> int:
        """Return a digest of the tensors' present bits."""
        return hash(tuple(map(digest, self.bits)))

    def other_bits(self) -> int:
        """Return the same of the copy."""
        return hash(tuple(map(digest, self.other)))

    def gloo(self) -> None:
        """Broadcast all tensors from the trainer, one after the other."""
        for row in self.bits:
            self.torch.distributed.broadcast(self.torch.from_numpy(row.view(np.uint8)), 0)

    @cached_property
    def other(self) -> list[Bits]:
        """Further rows, for methods that need a copy."""
        return [row.copy() for row in self.bits]

    def keep_other(self) -> None:
        """Renew the copy."""
        for row, copy in zip(self.bits, self.other, strict=True):
            copy[:] = row


class Trainer(_End):
    """The publishing end."""

    def fill(self) -> None:
        """Start from a trained model's distribution."""
        flip(self.bits, two_versions(PATTERN, density=0.01).old)

    def patch(self, density: float) -> None:
        """Choose how much `change` changes."""
        self._patch = patch_of(density)

    def change(self, tensors: int | None = None) -> None:
        """Change the weights: forth, and back at the next call."""
        flip(self.bits[:tensors], self._patch)

    def publish(self, listen: str) -> tuple[str, str]:
        self.publisher = rose.publish(self.tensors, listen=listen)
        return self.publisher.address, self.publisher.token

    def update(self) -> None:
        self.publisher.update(self.tensors)

    def close(self) -> None:
        self.publisher.close()

    def sent_bytes(self) -> float:
        return self.publisher.figures()["sent_bytes"]

    def save(self, file: str) -> None:
        from safetensors.torch import save_file

        save_file({name: one for name, one in self.tensors.items() if name != _TIED[1]}, file)

    def send_changes(self) -> None:
        """Send torch's `ne` and `nonzero` of each tensor through zstd."""
        for row, shadow in zip(self.bits, self.other, strict=True):
            frame = compress(VerlLike().pack(row, shadow))
            content = self.torch.from_numpy(np.frombuffer(frame, np.uint8).copy())
            self.torch.distributed.send(self.torch.tensor([len(frame)]), 1)
            self.torch.distributed.send(content, 1)


class Engine(_End):
    """The receiving end."""

    def open_memory_door(self, is_open: bool) -> None:
        """Read the publisher's memory; or pull over TCP, as an engine on another host does."""
        from rose.transfer.wire import memory_door, remote

        remote.reader_of = memory_door.reader_of if is_open else _no_reader

    def clear(self) -> None:
        for row in self.bits:
            row[:] = 0

    def receive(self, address: str, token: str) -> None:
        self.receiver = rose.receive(self.tensors, address, token=token)

    def stage(self) -> None:
        self.receiver.wait(DEADLINE_S)

    def commit(self) -> float:
        """Commit the ready version; return the seconds that this takes."""
        began_ns = time.perf_counter_ns()
        check(self.receiver.commit() is not None, "no version was ready")
        return (time.perf_counter_ns() - began_ns) / 1e9

    def follow(self) -> float:
        self.stage()
        return self.commit()

    def first_sync(self, address: str, token: str) -> None:
        self.receive(address, token)
        self.follow()

    def close(self) -> None:
        self.receiver.close()

    def bare(self, density: float) -> float:
        """Change all tiles of a copy without rose, and digest them; return the seconds."""
        patch = patch_of(density)
        rows = self.other
        began_ns = time.perf_counter_ns()
        for row in rows:
            for first in range(0, len(row), _TILE):
                tile = row[first : first + _TILE]
                tile ^= patch[first % PATTERN :][: len(tile)]
                digest(tile)
        return (time.perf_counter_ns() - began_ns) / 1e9

    def load(self, file: str) -> None:
        from safetensors.torch import load_file

        for name, one in load_file(file).items():
            self.tensors[name].copy_(one)

    def take_changes(self) -> None:
        """Apply what `Trainer.send_changes` sends to a copy."""
        for row in self.other:
            count = self.torch.zeros(1, dtype=self.torch.int64)
            self.torch.distributed.recv(count, 0)
            content = self.torch.empty(int(count), dtype=self.torch.uint8)
            self.torch.distributed.recv(content, 0)
            frame = decompress(content.numpy().data)
            changed = len(frame) // 6
            positions = np.frombuffer(frame, np.int32, changed)
            row[positions] = np.frombuffer(frame, np.uint16, changed, 4 * changed)


def _no_reader(_port: int, _token: bytes) -> None:
    """Stand for a door on another host."""


# A power of two that divides the pattern, about as large as a tile of rose.
_TILE: Final = 1 << 20


def _serve(line: Connection, kind: Callable[..., _End], arguments: tuple[Any, ...]) -> None:
    end = kind(*arguments)
    line.send(None)
    while True:
        name, *given = line.recv()
        line.send(getattr(end, name)(*given))


@dataclass(frozen=True, slots=True)
class Took:
    """Cost of a step of both ends, and what their methods returned."""

    wall_s: float
    trainer_cpu_s: float
    engine_cpu_s: float
    values: tuple[Any, Any] = (None, None)

    def __add__(self, other: "Took") -> "Took":
        return Took(
            self.wall_s + other.wall_s,
            self.trainer_cpu_s + other.trainer_cpu_s,
            self.engine_cpu_s + other.engine_cpu_s,
        )


class Ends:
    """Calls methods of a `Trainer` and an `Engine`, and measures them from here."""

    def __init__(self, trainer: Rank, engine: Rank, listen: str) -> None:
        self._both = (trainer, engine)
        self._listen = listen

    def run(self, trainer: Call | None, engine: Call | None) -> Took:
        """Run one method at each end at the same time; None for none."""
        calls = (trainer, engine)
        before = self._each(("cpu_s",), ("cpu_s",))
        began_ns = time.perf_counter_ns()
        values = self._each(*calls)
        wall_s = (time.perf_counter_ns() - began_ns) / 1e9
        after = self._each(("cpu_s",), ("cpu_s",))
        cpu_s = [late - early for early, late in zip(before, after, strict=True)]
        return Took(wall_s, cpu_s[0], cpu_s[1], (values[0], values[1]))

    def trainer(self, *call: Any) -> Any:
        return self._each(call, None)[0]

    def engine(self, *call: Any) -> Any:
        return self._each(None, call)[1]

    def publish(self) -> tuple[str, str]:
        """Publish the trainer's tensors; return address and token."""
        address, token = self.trainer("publish", self._listen)
        return address, token

    def is_equal(self) -> bool:
        """Whether both ends hold the same bits."""
        ours, theirs = self._each(("actual",), ("actual",))
        return bool(ours == theirs)

    def _each(self, *calls: Call | None) -> list[Any]:
        asked = [rank for rank, call in zip(self._both, calls, strict=True) if call is not None]
        for rank, call in zip(self._both, calls, strict=True):
            if call is not None:
                rank.say(call)
        return [rank.hear() if rank in asked else None for rank in self._both]


@contextmanager
def two_ends(shapes: Shapes, link: Link | None = None) -> Iterator[Ends]:
    """Start both ends, the trainer with weights and the engine with zeros; stop them at the end.

    Args:
        shapes: tensors of the model.
        link: link between the ends; None for loopback.
    """
    with ExitStack() as parts:
        meeting = f"{parts.enter_context(tempfile.TemporaryDirectory())}/gloo"
        near = ("", "lo") if link is None else (link.near.namespace, link.near.device)
        far = ("", "lo") if link is None else (link.far.namespace, link.far.device)
        kinds: tuple[Callable[..., _End], ...] = (Trainer, Engine)
        ranks = []
        for number, (kind, (space, device)) in enumerate(zip(kinds, (near, far), strict=True)):
            ranks.append(Rank(space, _serve, kind, (shapes, meeting, number, device)))
            parts.callback(ranks[-1].end)
        for rank in ranks:
            rank.hear()
        ends = Ends(*ranks, "127.0.0.1:0" if link is None else f"{link.near.address}:0")
        ends.trainer("fill")
        yield ends
