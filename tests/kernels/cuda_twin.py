"""The CUDA kernels on this CPU, as a twin for `tests.codec_laws`."""

from tests.codec_cases import SEED
from tests.kernels.on_cpu import KernelsOnCpu
from tests.reference import delta as reference
from tests.reference.delta import Ages, Bits, Delta

# What memory holds that no kernel wrote.
_POISONED_WORD = 0xA5A5A5A5
_POISONED_POSITION = -0x5A5A5A5A5A5A5A5B


class CudaTwin:
    """The kernels, run in one order of their threads. A damaged delta changes its sound blocks."""

    is_whole = False
    place = (8, SEED)

    def __init__(self, kernels: KernelsOnCpu) -> None:
        self.kernels = kernels

    def pack(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        threshold: int = 0,
        ages: Ages | None = None,
        is_flat: bool = False,
    ) -> tuple[Delta, tuple[int, int]]:
        first_index, seed = self.place
        packed = self.kernels.pack(
            new,
            shadow,
            block_elements=block_elements,
            threshold=threshold or None,
            ages=ages,
            first_index=first_index,
            seed=seed,
            is_flat=is_flat,
        )
        assert packed.ends[0] == 0
        assert (packed.arena[packed.ends[-1] :] == _POISONED_WORD).all(), "beyond the payload"
        width = 8 * new.itemsize
        delta = Delta(new.size, block_elements, packed.entries, packed.payload(), width)
        return delta, packed.digest

    def apply(self, delta: Delta, weights: Bits, *, undo: bool = False) -> int | None:
        """Apply with the kernel that digests, too; both must do the same."""
        held = weights.copy()
        bad = self.kernels.apply(delta, weights, undo=undo)
        also_bad, digests = self.kernels.apply_all([delta], [held], undo=undo)
        assert also_bad == bad
        assert (held == weights).all()
        assert bad is not None or digests == [reference.digest(held.reshape(-1))]
        return bad

    def unpack(self, delta: Delta, base: Bits) -> tuple[list[int], list[int], int | None]:
        """List the changes; the places of a damaged block are not written."""
        positions, values, bad = self.kernels.unpack(delta, base)
        if bad is not None:
            changed = [entry >> 4 & 0xFFFFF for entry in delta.entries]
            first, count = sum(changed[:bad]), changed[bad]
            poison = _POISONED_WORD & ((1 << delta.width) - 1)
            assert positions[first : first + count] == [_POISONED_POSITION] * count
            assert values[first : first + count] == [poison] * count
        return positions, values, bad

    def threshold(self, new: Bits, shadow: Bits, *, budget: int, ages: Ages | None = None) -> int:
        return self.kernels.threshold(self.kernels.histogram(new, shadow, ages=ages), budget=budget)

    def digest(self, bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
        return self.kernels.digest(bits, first_index=first_index, seed=seed, blocks=3)
