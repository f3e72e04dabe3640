"""Lower bounds for the bytes of a change, for codecs with different knowledge.

A bound counts, for every element, whether it changed, and its step: the difference of the bits
modulo 2^16. Rates and step sizes are taken from the arrays themselves at no cost, so no codec with
that knowledge can use fewer bytes.
"""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]

_EXPONENT_AT = 7  # of bf16: sign, 8 bits of exponent, 7 of mantissa
_EXPONENTS = 256


def exponents(bits: Bits) -> Bits:
    """Return the exponent fields of bf16, 0 to 255."""
    return (bits >> _EXPONENT_AT) & np.uint16(_EXPONENTS - 1)


def steps(new: Bits, old: Bits) -> Bits:
    """Return new - old modulo 2^16, 0 where nothing changed."""
    return np.subtract(new, old, dtype=np.uint16)


def iid_entropy_bytes(new: Bits, old: Bits) -> float:
    """Return the fewest bytes per change for a codec that does not use the weights.

    Args:
        new: (n,) bits; at least one differs from `old`.
        old: (n,) bits.
    """
    step = steps(new, old)
    return _bits(np.bincount(step)) / np.count_nonzero(step) / 8


def class_entropy_bytes(new: Bits, old: Bits) -> float:
    """Return the fewest bytes per change for a codec that knows the old bf16 exponents."""
    step, old_exponents = steps(new, old), exponents(old)
    in_all = 0.0
    for exponent in np.unique(old_exponents):
        in_all += _bits(np.bincount(step[old_exponents == exponent]))
    return in_all / np.count_nonzero(step) / 8


def _bits(counts: npt.NDArray[np.int64]) -> float:
    """Return the bits that encode the step of every element; unchanged is step 0.

    By the chain rule they are the bits for the positions of changes plus those for their steps.
    """
    some = counts[counts > 0].astype(np.float64)
    return float((some * (np.log2(some.sum()) - np.log2(some))).sum())
