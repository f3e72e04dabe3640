"""Send the weights that each training step changed, between arrays of any library with DLPack.

The arrays are NumPy's, or those of a library named on the command line: `torch`, or `cupy` for
arrays on a GPU. The calls are the same, and arrays are changed in place, without a copy.
`python examples/deltas.py` takes a second.
"""

import sys
from importlib import import_module
from typing import Any

from rose.transfer import Delta, delta_apply, delta_pack

WEIGHTS, STEPS, ONE_IN = 1_000_000, 3, 100


def send(weights: Any, shadow: Any) -> bytes:
    """Return the changes since `shadow`, a copy of the receiver's weights, and update `shadow`."""
    return delta_pack(weights, shadow).to_bytes()


def receive(held: Any, sent: bytes) -> Delta:
    """Bring the receiver's weights up to date; a delta that was damaged on its way is refused."""
    delta = Delta.from_bytes(sent)
    delta_apply(held, delta, verify=True)  # refuses weights that the delta was not made for
    return delta


def main(library: str = "numpy") -> list[int]:
    """Return the size of each step's delta, in bytes."""
    arrays = import_module(library)
    weights = arrays.linspace(-1, 1, WEIGHTS, dtype=arrays.float32)
    shadow, held = (
        weights * 1,
        weights * 1,
    )  # `shadow` is the trainer's copy of `held`, the receiver's weights
    sizes = []
    for step in range(STEPS):
        weights[step::ONE_IN] *= 1.001  # a small learning rate changes few weights, by little
        sent = send(weights, shadow)
        before = held * 1
        delta = receive(held, sent)
        print(f"step {step}: {delta.changed} of {WEIGHTS} weights in {len(sent)} bytes")
        sizes.append(len(sent))
    print("the receiver has the trainer's weights:", bool((held == weights).all()))
    delta_apply(held, delta, undo=True)  # the same delta restores the old weights
    print("and, with the last step undone, those before:", bool((held == before).all()))
    return sizes


if __name__ == "__main__":
    main(*sys.argv[1:2])
