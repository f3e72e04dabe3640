"""Bytes of anyone as a delta: nothing crashes, and nothing that is refused changes a tensor.

From the root: `python -m tests.fuzz.fuzz_delta -runs=100000`. Half of the inputs are frames whose
checksums are made right, so that the fuzzer gets behind them.
"""

import struct
import sys
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply
from rose.transfer.codec.operations import delta_check, delta_merge, topk_unpack

# The most elements that a tensor is made for; a delta of more is read and checked only.
ELEMENTS_MAX = 1 << 18
HEADER_BYTES = 96
REFUSED = (CorruptData, InvalidArgument)


def sealed(content: bytes) -> bytes:
    """Return the bytes as a frame: magic, version, sizes and checksums are made right."""
    frame = bytearray(content.ljust(HEADER_BYTES, b"\0"))
    frame[:12] = struct.pack("<8sI", b"ROSEDLT2", 2)
    frame[12:16] = struct.pack("<I", (65_536, 16_384)[frame[12] & 1])
    frame[16:24] = struct.pack("<Q", struct.unpack_from("<Q", frame, 16)[0] % ELEMENTS_MAX)
    frame[64] = (32, 8, 16)[frame[64].bit_length() % 3]  # what is a width stays as it is
    frame[78:88] = bytes(10)
    if not frame[65] & 1:
        frame[65:78] = bytes(13)
    block_elements, count = struct.unpack_from("<IQ", frame, 12)
    del frame[len(frame) - len(frame) % 4 :]
    blocks = -(-count // block_elements)
    frame += bytes(max(0, HEADER_BYTES + 8 * blocks - len(frame)))
    words = (len(frame) - HEADER_BYTES - 8 * blocks) // 4
    frame[24:32] = struct.pack("<Q", words)
    frame[88:92] = struct.pack("<I", zlib.crc32(frame[HEADER_BYTES:]))
    frame[92:96] = struct.pack("<I", zlib.crc32(frame[:92]))
    return bytes(frame)


def try_frame(frame: bytes) -> bool:
    """Take the frame through everything that reads one; return whether it could be applied."""
    try:
        delta = Delta.from_bytes(frame)
    except REFUSED:
        return False
    assert delta.to_bytes() == frame
    try:
        delta_check(delta)
        is_sound = True
    except CorruptData:
        is_sound = False
    if delta.count > ELEMENTS_MAX:
        return False
    try_apply(delta, is_sound=is_sound)
    return is_sound


def try_apply(delta: Delta, *, is_sound: bool) -> None:
    base = np.arange(delta.count, dtype=np.uint32).astype(f"u{delta.width // 8}")
    weights = base.copy()
    for verify in (True, False):
        apply_once(delta, weights, is_sound=is_sound, verify=verify)
        assert np.array_equal(weights, base)
    try:
        both = delta_merge(delta, replace(delta, base_digest=delta.digest))
    except CorruptData:
        assert not is_sound
    else:
        delta_apply(weights, both)
        for _ in range(2):
            delta_apply(weights, delta, undo=True)
        assert np.array_equal(weights, base)


def apply_once(delta: Delta, weights: Any, *, is_sound: bool, verify: bool) -> None:
    base = weights.copy()
    try:
        delta_apply(weights, delta, verify=verify)
    except CorruptData:
        assert verify or not is_sound
        return
    assert is_sound
    positions, values = topk_unpack(delta, base)
    assert len(positions) == delta.changed
    assert np.array_equal(weights[positions], values)
    delta_apply(weights, delta, undo=True)


def one_input(content: bytes) -> None:
    """Try what the fuzzer made, as it is or as a frame of its length."""
    if content[:1] < b"\x80":
        try_frame(content[1:])
    else:
        try_frame(sealed(content[1:]))


def main() -> None:
    import atheris

    for function in (sealed, try_frame, try_apply, apply_once, vars(Delta)["from_bytes"].__func__):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
