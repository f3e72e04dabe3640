"""A decoder of realistic size and shape with random weights, the load of the end-to-end suite.

Its arithmetic is that of a Llama block without positions: the same products and the same bytes of
weights and KV, without a meaning. It runs on any torch device. On a GPU its steps are captured in
parts, so that neither Python nor its lock delays them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder and of its KV.

    Args:
        context: most tokens of a sequence.
        slots: most sequences at once.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    slots: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def weight_bytes(self) -> int:
        projections = self.hidden * (self.hidden * 2 + 2 * self.kv_heads * self.head)
        return 2 * (
            self.layers * (projections + 3 * self.hidden * self.ffn) + self.hidden * self.vocabulary
        )

    @property
    def kv_bytes(self) -> int:
        return 4 * self.layers * self.slots * self.context * self.kv_heads * self.head


LIKE_8B: Final = Shape(
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocabulary=128_256,
    context=1024,
    slots=64,
)
TINY: Final = Shape(
    layers=4, hidden=32, ffn=64, heads=4, kv_heads=2, vocabulary=64, context=64, slots=8
)


class Decoder:
    """Weights and KV of one model. One thread runs its steps."""

    def __init__(self, shape: Shape, device: Any, *, seed: int) -> None:
        import torch

        self.shape, self.device = shape, device
        is_cpu = device.type == "cpu"
        self.dtype = torch.float32 if is_cpu else torch.bfloat16
        generator = torch.Generator(device=device).manual_seed(seed)

        def weight(rows: int, columns: int) -> Any:
            made = torch.empty(rows, columns, dtype=self.dtype, device=device)
            return made.normal_(0, 1 / math.sqrt(columns), generator=generator)

        hidden, kv = shape.hidden, shape.kv_heads * shape.head
        self._layers = [
            (
                weight(hidden + 2 * kv, hidden),
                weight(hidden, hidden),
                weight(2 * shape.ffn, hidden),
                weight(hidden, shape.ffn),
            )
            for _ in range(shape.layers)
        ]
        self._head = weight(shape.vocabulary, hidden)
        size = (shape.layers, 2, shape.slots, shape.context, shape.kv_heads, shape.head)
        self._kv = torch.zeros(size, dtype=self.dtype, device=device)
        self._generator = generator

    def inputs(self, rows: int, tokens: int) -> Any:
        import torch

        made = torch.empty(rows, tokens, self.shape.hidden, dtype=self.dtype, device=self.device)
        return made.normal_(generator=self._generator)

    def layer(self, number: int, x: Any, step: "Step") -> Any:
        import torch
        from torch.nn import functional

        shape, (rows, tokens) = self.shape, x.shape[:2]
        projections, out, up, down = self._layers[number]
        kv_width = shape.kv_heads * shape.head
        parts = (self._norm(x) @ projections.T).split((shape.hidden, kv_width, kv_width), dim=-1)
        query = parts[0].view(rows, tokens, shape.heads, shape.head)
        held = []
        for which in (0, 1):
            cache = self._kv[number, which]
            new = parts[which + 1].view(rows, tokens, shape.kv_heads, shape.head)
            cache.index_put_((step.slots[:, None], step.places), new)
            # All slots up to the last are a view; one slot is a copy.
            held.append(cache[:rows] if step.is_whole else cache.index_select(0, step.slots))
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            held[0].transpose(1, 2),
            held[1].transpose(1, 2),
            attn_mask=step.mask,
            enable_gqa=True,
        )
        x = x + mixed.transpose(1, 2).reshape(rows, tokens, shape.hidden) @ out.T
        gate, value = (self._norm(x) @ up.T).chunk(2, dim=-1)
        return x + (torch.nn.functional.silu(gate) * value) @ down.T

    def _norm(self, x: Any) -> Any:
        from torch.nn import functional

        return functional.rms_norm(x, (self.shape.hidden,))

    def tokens_of(self, x: Any) -> Any:
        return (self._norm(x[:, -1]) @ self._head.T).argmax(dim=-1)


class Step:
    """One kind of step: `rows` sequences get `tokens` each. Its tensors keep their addresses.

    Args:
        decoder: decoder to run.
        rows: 1 with many tokens for a chunk of a prompt; many with 1 token for a decode step of
            the first `rows` slots.
        tokens: new tokens per sequence.
        every: layers in one part.
    """

    def __init__(self, decoder: Decoder, rows: int, tokens: int, *, every: int) -> None:
        import torch

        device, shape = decoder.device, decoder.shape
        self.rows, self.tokens = rows, tokens
        self.is_whole = tokens == 1
        self._decoder = decoder
        self._inputs = decoder.inputs(rows, tokens)
        self._state = torch.empty_like(self._inputs)
        self.slots = torch.arange(rows, device=device)
        self._first = torch.zeros(rows, dtype=torch.long, device=device)
        self._ahead = torch.arange(tokens, device=device)
        self._columns = torch.arange(shape.context, device=device)
        self.places = self._first[:, None] + self._ahead
        self.mask = torch.zeros(rows, 1, tokens, shape.context, dtype=torch.bool, device=device)
        self.out = torch.zeros(rows, dtype=torch.long, device=device)
        borders = [*range(0, shape.layers, every), shape.layers]
        self.parts = [Part(self._run, *pair) for pair in pairwise(borders)]

    def aim(self, slots: list[int], first: list[int]) -> None:
        """Set the sequences, and the positions of the new tokens in each; before a run."""
        import torch

        self.slots.copy_(torch.tensor(slots), non_blocking=True)
        self._first.copy_(torch.tensor(first), non_blocking=True)

    def _run(self, first: int, last: int) -> None:
        if first == 0:
            self.places.copy_(self._first[:, None] + self._ahead)
            self.mask.copy_((self._columns <= self.places[:, :, None])[:, None])
            self._state.copy_(self._inputs)
        x = self._state
        for number in range(first, last):
            x = self._decoder.layer(number, x, self)
        self._state.copy_(x)
        if last == self._decoder.shape.layers:
            self.out.copy_(self._decoder.tokens_of(x))

    def capture(self, stream: Any, pool: Any) -> None:
        """Make each part a CUDA graph. Call it before anything is parked, because it allocates.

        Args:
            stream: stream to capture on; the graph can be launched on any.
            pool: memory pool of `torch.cuda.graph_pool_handle`, for steps that run one after the
                other.
        """
        import torch

        with torch.cuda.stream(stream):
            for part in self.parts:
                part.replay()  # the first run allocates workspaces
        stream.synchronize()
        for part in self.parts:
            part.capture(stream, pool)


class Part:
    """Some layers of a step, in the form that `rose.engines.torch.gate_graphs` takes."""

    def __init__(self, run: Callable[[int, int], None], first: int, last: int) -> None:
        self._run = lambda: run(first, last)

    def capture(self, stream: Any, pool: Any) -> None:
        import torch

        from rose._core import CudaDevice, CudaGraph

        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=stream, pool=pool, capture_error_mode="thread_local"):
            self._run()
        # A graph replayed by torch has the priority of the stream that it was captured on. This one
        # has that of the stream it is launched on.
        device = CudaDevice.open(stream.device.index or 0)
        launchable = CudaGraph.instantiate(device, int(graph.raw_cuda_graph()))
        self._captured = graph  # it owns the memory
        self._run = lambda: launchable.launch(int(torch.cuda.current_stream().cuda_stream))

    def replay(self) -> None:
        """Enqueue it on the current stream."""
        self._run()
