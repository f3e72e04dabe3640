"""Execute the machine code of a kernel on a CPU, and count how often each instruction runs.

A warp runs in lockstep, as on the device: lanes that part meet again where the code says so. CTAs
run one after another, and so do warps between two barriers. An instruction outside the table is an
error. Registers are rows of 32 lanes, and uniform registers are rows as well.
"""

import functools
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.kernels.sass import Instruction, Kernel

Lanes = npt.NDArray[Any]
LANES: Final = np.arange(32, dtype=np.uint64)
MASK: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_SHARED_AT: Final = 0x400  # where a kernel's own shared memory begins
_PARAMS_AT: Final = 0x210
_NONE: Final = 1 << 62  # no program counter
_UNIFORM: Final = frozenset(
    "UMOV UIADD3 UIMAD ULEA USHF ULOP3 USEL UISETP UPOPC UFLO UPRMT UPLOP3 UBREV ULDC".split()
)
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_ATOMIC: Final[dict[str, Callable[[int, int], int]]] = {
    "ADD": lambda old, new: old + new,
    "INC": lambda old, _: old + 1,
    "OR": lambda old, new: old | new,
    "MIN": min,
    "MAX": max,
    "EXCH": lambda _, new: new,
}


def _signed(number: Lanes) -> Lanes:
    return number.astype(np.uint32).view(np.int32).astype(np.int64)


def _floats(bits: Lanes) -> Lanes:
    return bits.astype(np.uint32).view(np.float32)


def _bits(floats: Lanes) -> Lanes:
    return floats.astype(np.float32).view(np.uint32).astype(np.uint64)


class Memory:
    """Global memory. Addresses start at 4,096, so that null is none of them."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes = np.full(size_bytes + 4096, 0xA5, np.uint8)
        self._end = 4096

    def put(self, array: npt.NDArray[Any]) -> int:
        """Copy an array to the device, and return its address, a multiple of 256."""
        address = self._end
        self.view(address, array.dtype, array.size)[:] = array
        self._end = -(-(address + array.nbytes) // 256) * 256
        return address

    def view(self, address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        return self.bytes[address : address + count * np.dtype(dtype).itemsize].view(dtype)


class Run:
    """One launch. `counts[i]` is how often a warp ran instruction i, whatever lanes took part."""

    def __init__(
        self, kernel: Kernel, memory: Memory, params: bytes, *, blocks: int, threads: int
    ) -> None:
        self.kernel, self.memory = kernel, memory
        self.blocks, self.threads = blocks, threads
        self.counts: Counter[int] = Counter()
        bank = struct.pack("<6I", threads, 1, 1, blocks, 1, 1).ljust(_PARAMS_AT, b"\0")
        self.constants = np.frombuffer(bank + params + bytes(-len(params) % 8), np.uint8)
        for block in range(blocks):
            shared = np.full(kernel.shared_bytes + _SHARED_AT, 0xA5, np.uint8)
            warps = [Warp(self, shared, block, first) for first in range(0, threads, 32)]
            running = [warp.run() for warp in warps]
            while running:
                votes = [next(one, None) for one in running]
                is_over = None in votes
                assert not is_over or set(votes) == {None}, "some warps ended before a barrier"
                running = [] if is_over else running
                for warp in warps:
                    warp.votes = sum(vote or 0 for vote in votes)


class Warp:
    """32 lanes, which share what runs but not where they are."""

    def __init__(self, run: Run, shared: npt.NDArray[np.uint8], block: int, first: int) -> None:
        self._run, self._shared = run, shared
        self._special = {
            "SR_TID.X": LANES + np.uint64(first),
            "SR_CTAID.X": np.full(32, block, np.uint64),
            "SR_LANEID": LANES,
            "SR_LTMASK": (np.uint64(1) << LANES) - np.uint64(1),
            "SR_CgaCtaId": np.zeros(32, np.uint64),
        }
        self.rows = {name: np.zeros((256, 32), np.uint64) for name in ("R", "UR")}
        self.flags = {name: np.ones((8, 32), bool) for name in ("P", "UP")}
        self.at = np.zeros(32, np.int64)
        self.wait = np.zeros(32, bool)  # at a BSYNC
        self.groups: dict[str, Lanes] = {}
        self.votes = 0

    def run(self) -> Iterator[int]:
        """Run to the end; yields this warp's votes at each barrier of the CTA."""
        code, counts = self._run.kernel.code, self._run.counts
        while (self.at != _NONE).any():
            at = int(np.where(self.wait, _NONE, self.at).min())
            assert at != _NONE, "the lanes wait for each other"
            one = code[at // 16]
            counts[at // 16] += 1
            lanes = (self.at == at) & ~self.wait
            self.active = lanes & self.flag(one.guard) if one.guard else lanes
            self.at[lanes] += 16
            op = one.op.split(".")
            if op[0] == "BAR":
                self._assert_whole()
                yield int(self.flag(one.operands[1])[self.active].sum()) if "RED" in op else 0
            elif self.active.any():
                name = op[0][1:] if op[0] in _UNIFORM else op[0]
                step = getattr(self, f"_{name.lower()}", None)
                assert step is not None, f"{one.op} is not in the table"
                step(one, op[1:])

    # ---- operands ----

    def flag(self, text: str) -> Lanes:
        name = text.lstrip("!")
        kind, number = ("UP", name[2:]) if name[0] == "U" else ("P", name[1:])
        found: Lanes = self.flags[kind][7 if number == "T" else int(number)]
        return ~found if text[0] == "!" else found

    def get(self, text: str, *, wide: bool = False) -> Lanes:
        """Return an operand; -R is 2^32 - R, so that a sum has the carry of a subtraction."""
        sign, name = (text[0], text[1:]) if text[0] in "-~" and text[1] in "RUc" else ("", text)
        name = name.split(".")[0]
        if name[0] == "c":
            value = self._constant(text.lstrip("-~"), 8 if wide else 4)
        elif name[0] in "RU":
            value = self._row(name, 0)
            if wide:
                value = value | self._row(name, 1) << _HALF
        else:
            value = np.full(32, int(text, 0) & 0xFFFFFFFF, np.uint64)
        if sign == "-":
            return np.uint64(1 << 32) - value
        return value ^ MASK if sign == "~" else value

    def _row(self, name: str, offset: int) -> Lanes:
        if name in {"RZ", "URZ", "SRZ"}:
            return np.zeros(32, np.uint64)
        kind, number = ("UR", name[2:]) if name[0] == "U" else ("R", name[1:])
        found: Lanes = self.rows[kind][int(number) + offset]
        return found

    def _constant(self, text: str, size: int) -> Lanes:
        bank, inside = re.findall(r"\[([^]]*)\]", text)
        assert bank == "0x0"
        at = self._address(inside)
        parts = [self._run.constants[(at + np.uint64(i)).astype(np.int64)] for i in range(size)]
        return sum(
            (one.astype(np.uint64) << np.uint64(8 * i) for i, one in enumerate(parts)),
            np.zeros(32, np.uint64),
        )

    def _address(self, text: str) -> Lanes:
        """Return the address of `R2.64+UR4+0x10`, with 32 bits unless there is a `.64`."""
        address = np.zeros(32, np.uint64)
        for part in text.replace("+-", "+~").split("+"):
            if part[0] in "RU":
                address = address + self.get(part, wide=".64" in part)
            else:
                address = address + np.uint64(int(part.replace("~", "-"), 0) % (1 << 64))
        return address if ".64" in text else address & MASK

    def set(self, name: str, value: Lanes, *, offset: int = 0) -> None:
        if name[0] == "U" and name != "URZ":  # of all lanes, whichever run
            self._row(name, offset)[:] = value[self.active.argmax()] & MASK
        elif name not in {"RZ", "URZ"}:
            np.copyto(self._row(name, offset), value & MASK, where=self.active)

    def set_wide(self, name: str, value: Lanes) -> None:
        self.set(name, value)
        if name not in {"RZ", "URZ"}:
            self.set(name, value >> _HALF, offset=1)

    def set_flag(self, name: str, value: Lanes) -> None:
        if name[0] == "U" and name != "UPT":
            self.flag(name)[:] = value[self.active.argmax()]
        elif name not in {"PT", "UPT"}:
            np.copyto(self.flag(name), value, where=self.active)

    def _split(self, one: Instruction) -> tuple[str, list[str], list[str], list[str]]:
        """Return the target, its flags, the numbers and the flags that are read."""
        flags = [bool(re.fullmatch(r"!?U?P[0-7T]", text)) for text in one.operands]
        first = next(i for i in range(1, len(flags)) if not flags[i])
        rest = [text for text, is_flag in zip(one.operands, flags, strict=True) if not is_flag][1:]
        inputs = [
            text
            for i, (text, is_flag) in enumerate(zip(one.operands, flags, strict=True))
            if is_flag and i > first
        ]
        return one.operands[0], list(one.operands[1:first]), rest, inputs

    # ---- numbers ----

    def _mov(self, one: Instruction, _: list[str]) -> None:
        self.set(one.operands[0], self.get(one.operands[1]))

    def _hfma2(self, one: Instruction, _: list[str]) -> None:  # how a constant is made
        assert one.operands[1:3] == ("-RZ", "RZ")
        high, low = (np.float16(text).view(np.uint16) for text in one.operands[3:5])
        self.set(one.operands[0], np.full(32, int(high) << 16 | int(low), np.uint64))

    def _cs2r(self, one: Instruction, mods: list[str]) -> None:
        assert one.operands[1] == "SRZ"
        (self.set if "32" in mods else self.set_wide)(one.operands[0], np.zeros(32, np.uint64))

    def _s2r(self, one: Instruction, _: list[str]) -> None:
        self.set(one.operands[0], self._special[one.operands[1]])

    _s2ur = _s2r
    _r2ur = _umov = _mov

    def _iadd3(self, one: Instruction, _: list[str]) -> None:
        target, carries, numbers, inputs = self._split(one)
        total = sum((self.get(text) for text in numbers), np.zeros(32, np.uint64))
        for text in inputs:
            total = total + self.flag(text)
        self.set(target, total)
        for i, name in enumerate(carries):
            self.set_flag(name, (total >> _HALF) > i)

    _viadd = _iadd3

    def _imad(self, one: Instruction, mods: list[str]) -> None:
        target, carries, (a, b, c), inputs = self._split(one)
        x, y = self.get(a) & MASK, self.get(b) & MASK
        if not {"WIDE", "HI"} & set(mods):
            total = x * y + self.get(c) + (self.flag(inputs[0]) if inputs else np.uint64(0))
            self.set(target, total)
            return
        product = x * y if "U32" in mods else (_signed(x) * _signed(y)).view(np.uint64)
        total = product + self.get(c, wide=True)
        carry = total < product
        if inputs:
            carry = carry | (total + self.flag(inputs[0]) < total)
            total = total + self.flag(inputs[0])
        if "HI" in mods:
            self.set(target, total >> _HALF)
        else:
            self.set_wide(target, total)
        for name in carries:
            self.set_flag(name, carry)

    def _lea(self, one: Instruction, mods: list[str]) -> None:
        target, carries, numbers, inputs = self._split(one)
        shift = np.uint64(int(numbers[-1], 0))
        if "HI" in mods:
            a, b, c = (self.get(text) & MASK for text in numbers[:3])
            if "SX32" in mods:
                c = (_signed(a) >> 32).view(np.uint64) & MASK
            shifted = ((c << _HALF | a) >> (_HALF - shift)) & MASK
        else:
            a, b = self.get(numbers[0]), self.get(numbers[1])
            shifted = (a & MASK) << shift & MASK
        total = shifted + b + (self.flag(inputs[0]) if "X" in mods else np.uint64(0))
        self.set(target, total)
        for name in carries:
            self.set_flag(name, total >> _HALF != 0)

    def _lop3(self, one: Instruction, _: list[str]) -> None:
        flags = [one.operands[0]] if re.fullmatch(r"U?P[0-7T]", one.operands[0]) else []
        target, *numbers, table, other = one.operands[len(flags) :]
        words = [self.get(text) & MASK for text in numbers]
        result = np.zeros(32, np.uint64)
        for i in range(8):
            if int(table, 0) >> i & 1:
                term = np.full(32, MASK)
                for bit, word in zip((4, 2, 1), words, strict=True):
                    term = term & (word if i & bit else word ^ MASK)
                result |= term
        self.set(target, result)
        for name in flags:
            self.set_flag(name, (result != 0) | self.flag(other))

    def _shf(self, one: Instruction, mods: list[str]) -> None:
        target, low, by, high = one.operands
        shift = self.get(by) & (np.uint64(31) if "W" in mods else MASK)
        is_64 = "U64" in mods or "S64" in mods
        whole = (self.get(high) & MASK) << _HALF | (self.get(low) & MASK)
        if "L" in mods:
            of = whole if "HI" in mods else self.get(low) & MASK
            found = np.where(shift > 63, np.uint64(0), of << np.minimum(shift, np.uint64(63)))
            self.set(target, found >> _HALF if "HI" in mods else found)
            return
        small = np.minimum(shift, np.uint64(63))
        if "S32" in mods or "S64" in mods:
            found = (whole.view(np.int64) >> small.view(np.int64)).view(np.uint64)
        else:
            found = np.where(shift > 63, np.uint64(0), whole >> small)
        if "HI" in mods and not is_64 and "S32" not in mods:
            found = np.where(shift > 31, np.uint64(0), found)
        self.set(target, found >> _HALF if "HI" in mods else found)

    def _prmt(self, one: Instruction, mods: list[str]) -> None:
        assert not mods
        target, low, chosen, high = one.operands
        whole = (self.get(high) & MASK) << _HALF | (self.get(low) & MASK)
        selector = self.get(chosen)
        result = np.zeros(32, np.uint64)
        for i in range(4):
            nibble = selector >> np.uint64(4 * i) & np.uint64(15)
            byte = whole >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte > 127, np.uint64(255), np.uint64(0))
            result |= np.where(nibble > 7, sign, byte) << np.uint64(8 * i)
        self.set(target, result)

    def _sel(self, one: Instruction, _: list[str]) -> None:
        target, a, b, chosen = one.operands
        self.set(target, np.where(self.flag(chosen), self.get(a), self.get(b)))

    _fsel = _sel

    def _least(self, one: Instruction, mods: list[str], *, is_sum: bool) -> None:
        target, _, numbers, inputs = self._split(one)
        words = [self.get(text) & MASK for text in numbers]
        if is_sum:
            words = [words[0] + words[1] & MASK, words[2]]
        if "U32" not in mods:
            words = [_signed(word) for word in words]
        choose = (np.maximum, np.minimum)
        found = [functools.reduce(one_of, words) for one_of in choose]
        self.set(target, np.where(self.flag(inputs[-1]), found[1], found[0]).astype(np.uint64))

    def _vimnmx(self, one: Instruction, mods: list[str]) -> None:
        self._least(one, mods, is_sum=False)

    def _viaddmnmx(self, one: Instruction, mods: list[str]) -> None:
        self._least(one, mods, is_sum=True)

    _vimnmx3 = _vimnmx

    def _popc(self, one: Instruction, _: list[str]) -> None:
        self.set(one.operands[0], np.bitwise_count(self.get(one.operands[1]) & MASK))

    def _flo(self, one: Instruction, mods: list[str]) -> None:
        number = self.get(one.operands[1]) & MASK
        top = np.frexp(number.astype(np.float64))[1] - 1
        found = np.where(number == 0, 0xFFFFFFFF, 31 - top if "SH" in mods else top)
        self.set(one.operands[0], found.astype(np.uint64))

    def _brev(self, one: Instruction, _: list[str]) -> None:
        number = (self.get(one.operands[1]) & MASK).astype(np.uint32)
        bits = np.unpackbits(number.view(np.uint8), bitorder="little").reshape(32, 32)
        self.set(one.operands[0], np.packbits(bits).view(">u4").astype(np.uint64))

    # ---- flags ----

    def _isetp(self, one: Instruction, mods: list[str]) -> None:
        _, _, a, b, *inputs = one.operands
        words = [self.get(text) & MASK for text in (a, b)]
        if "U32" not in mods:
            words = [_signed(word) for word in words]
        found = _COMPARE[mods[0]](*words)
        if "EX" in mods:  # the upper half of a comparison of 64 bits
            low, is_same = self.flag(inputs[1]), words[0] == words[1]
            strict = {"GE": "GT", "LE": "LT"}.get(mods[0], mods[0])
            above = _COMPARE[strict](*words)
            found = found & low if mods[0] == "EQ" else above | (is_same & low)
        self._combine(one, found, inputs[0], mods)

    def _fsetp(self, one: Instruction, mods: list[str]) -> None:
        _, _, a, b, into = one.operands
        x, y = self._float(a), self._float(b)
        is_unordered = np.isnan(x) | np.isnan(y)
        found = _COMPARE[mods[0].removesuffix("U")](x, y)
        found = found | is_unordered if mods[0].endswith("U") else found & ~is_unordered
        self._combine(one, found, into, mods)

    def _float(self, text: str) -> Lanes:
        if text.endswith("INF"):
            return np.full(32, float(text.replace(" ", "")), np.float32)
        value = _floats(self.get(text.lstrip("-|").rstrip("|")))
        value = np.abs(value) if "|" in text else value
        return -value if text[0] == "-" else value

    def _combine(self, one: Instruction, found: Lanes, other: str, mods: list[str]) -> None:
        join = np.logical_or if "OR" in mods else np.logical_and
        given = self.flag(other).copy()
        self.set_flag(one.operands[0], join(found, given))
        self.set_flag(one.operands[1], join(~found, given))

    def _plop3(self, one: Instruction, _: list[str]) -> None:
        first, second, a, b, c, *tables = one.operands
        index = self.flag(a) * 4 + self.flag(b) * 2 + self.flag(c) * 1
        for name, table in zip((first, second), tables, strict=True):
            self.set_flag(name, np.right_shift(int(table, 0), index) & 1 != 0)

    def _p2r(self, one: Instruction, _: list[str]) -> None:
        target, _pr, into, chosen = one.operands
        mask = self.get(chosen)
        flags = sum(self.flags["P"][i].astype(np.uint64) << np.uint64(i) for i in range(7))
        self.set(target, (self.get(into) & (mask ^ MASK)) | (flags & mask))

    def _r2p(self, one: Instruction, _: list[str]) -> None:
        bits, mask = self.get(one.operands[1]), int(one.operands[2], 0)
        for i in range(7):
            if mask >> i & 1:
                self.set_flag(f"P{i}", bits >> np.uint64(i) & np.uint64(1) != 0)

    # ---- floating point: divisions of integers, and the key of a change ----

    def _fadd(self, one: Instruction, _: list[str]) -> None:
        a, b = (self._float(text) for text in one.operands[1:])
        with np.errstate(invalid="ignore"):  # lanes without an element add what they find
            self.set(one.operands[0], _bits(a + b))

    def _i2f(self, one: Instruction, mods: list[str]) -> None:
        assert mods == ["U32", "RP"]
        exact = (self.get(one.operands[1]) & MASK).astype(np.float64)
        near = exact.astype(np.float32)
        up = np.where(near < exact, np.nextafter(near, np.float32(np.inf)), near)
        self.set(one.operands[0], _bits(up))

    def _mufu(self, one: Instruction, mods: list[str]) -> None:
        assert mods == ["RCP"]
        with np.errstate(divide="ignore", over="ignore"):
            self.set(one.operands[0], _bits(np.float32(1) / _floats(self.get(one.operands[1]))))

    def _f2i(self, one: Instruction, mods: list[str]) -> None:
        assert {"U32", "TRUNC"} <= set(mods)
        number = np.nan_to_num(_floats(self.get(one.operands[1])).astype(np.float64))
        self.set(one.operands[0], np.clip(number, 0, 2**32 - 1).astype(np.uint64))

    # ---- lanes ----

    def _shfl(self, one: Instruction, mods: list[str]) -> None:
        flag, target, number, by, _ = one.operands
        step = self.get(by).astype(np.int64)
        lane = LANES.astype(np.int64)
        source = {"UP": lane - step, "DOWN": lane + step, "BFLY": lane ^ step, "IDX": step}[mods[0]]
        is_inside = (source >= 0) & (source < 32)
        value = self.get(number) & MASK
        self.set(target, value[np.where(is_inside, source, lane)])
        self.set_flag(flag, is_inside)

    def _vote(self, one: Instruction, mods: list[str]) -> None:
        assert mods == ["ANY"]
        votes = self.flag(one.operands[-1]) & self.active
        self.set(one.operands[0], np.full(32, int((votes << LANES).sum()), np.uint64))
        self.set_flag(one.operands[1], np.full(32, votes.any()))

    _voteu = _vote

    def _redux(self, one: Instruction, mods: list[str]) -> None:
        reduce = {"SUM": np.add, "OR": np.bitwise_or, "MAX": np.maximum}[mods[0]].reduce
        given = self.get(one.operands[1])[self.active] & MASK
        self.set(one.operands[0], np.full(32, reduce(given), np.uint64))

    def _b2r(self, one: Instruction, _: list[str]) -> None:
        self.set_flag(one.operands[1], np.full(32, self.votes > 0))

    # ---- memory ----

    def _ldc(self, one: Instruction, mods: list[str]) -> None:
        value = self._constant(one.operands[1], 8 if "64" in mods else 4)
        (self.set_wide if "64" in mods else self.set)(one.operands[0], value)

    def _place(self, one: Instruction, text: str, mods: list[str]) -> tuple[Any, Lanes, int]:
        """Return the memory, the index of each lane's first unit, and the number of units."""
        address = self._address(re.findall(r"\[([^]]*)\]", text)[-1])[self.active]
        size = next((int(mod.lstrip("US")) // 8 for mod in mods if mod in _SIZES), 4)
        assert (address % np.uint64(size) == 0).all(), f"a misaligned address at {one.at:#x}"
        unit = min(size, 4)
        of = self._shared if one.op[:3] in {"LDS", "STS"} or one.op[:5] == "ATOMS" else None
        space = self._run.memory.bytes if of is None else of
        least = 4096 if of is None else _SHARED_AT
        is_inside = (address >= least) & (address + np.uint64(size) <= space.size)
        assert is_inside.all(), f"an address outside memory at {one.at:#x}"
        whole = space[: space.size // 8 * 8]
        return whole.view(f"u{unit}"), (address // np.uint64(unit)).astype(np.int64), size // unit

    def _load(self, one: Instruction, mods: list[str]) -> None:
        words, at, units = self._place(one, one.operands[1], mods)
        value = np.zeros(32, np.uint64)
        for i in range(units):
            value[self.active] = words[at + i]
            self.set(one.operands[0], value, offset=i)

    def _store(self, one: Instruction, mods: list[str]) -> None:
        words, at, units = self._place(one, one.operands[0], mods)
        name = one.operands[1].split(".")[0]
        for i in range(units):
            words[at + i] = self._row(name, i)[self.active].astype(words.dtype)

    _ldg = _lds = _load
    _stg = _sts = _store

    def _atom(self, one: Instruction, mods: list[str]) -> None:
        operands = one.operands[1:] if one.operands[0] == "PT" else one.operands
        target = "RZ" if one.op.startswith("RED") else operands[0]
        where = next(i for i, text in enumerate(operands) if "[" in text)
        is_wide = "64" in mods
        words, at, _ = self._place(one, operands[where], ["64"] if is_wide else [])
        if is_wide:
            words = words.view("u8")
            at = at // 2
        given = [self.get(text, wide=is_wide)[self.active] for text in operands[where + 1 :]]
        old = np.zeros(32, np.uint64)
        lanes = np.flatnonzero(self.active)
        limit = (1 << 64) - 1 if is_wide else 0xFFFFFFFF
        for i, (lane, place) in enumerate(zip(lanes, at, strict=True)):
            was = int(words[place])
            old[lane] = was
            if "CAS" in mods:
                words[place] = int(given[1][i]) if was == int(given[0][i]) else was
            else:
                change = next(_ATOMIC[mod] for mod in mods if mod in _ATOMIC)
                words[place] = change(was, int(given[0][i]) if given else 0) & limit
        (self.set_wide if is_wide else self.set)(target, old)

    _atoms = _atomg = _red = _redg = _atom

    # ---- where lanes part and meet ----

    def _jump(self, lanes: Lanes, label: str) -> None:
        self.at[lanes] = self._run.kernel.labels[label]

    def _bra(self, one: Instruction, mods: list[str]) -> None:
        if "DIV" in mods:  # taken by a warp that is not whole
            self._assert_whole()
            return
        lanes = self.active
        for text in one.operands[:-1]:
            lanes = lanes & self.flag(text)
        self._jump(lanes, one.target)

    def _call(self, one: Instruction, _: list[str]) -> None:
        self._jump(self.active, one.target)

    def _ret(self, one: Instruction, _: list[str]) -> None:
        self.at[self.active] = self.get(one.operands[0])[self.active].astype(np.int64)

    def _exit(self, _: Instruction, __: list[str]) -> None:
        self.at[self.active] = _NONE
        self._release()

    def _bssy(self, one: Instruction, _: list[str]) -> None:
        self.groups[one.operands[0]] = self.active.copy()

    def _bsync(self, one: Instruction, _: list[str]) -> None:
        self.wait |= self.active
        self._release()

    def _break(self, one: Instruction, _: list[str]) -> None:
        self.groups[one.operands[-1]] &= ~self.active
        self._release()

    def _warpsync(self, one: Instruction, _: list[str]) -> None:
        self.groups[""] = np.ones(32, bool)
        self.wait |= self.active
        self._release()

    def _release(self) -> None:
        """Let the lanes of a group go on once all that still run wait for it."""
        for at in np.unique(self.at[self.wait]):
            one = self._run.kernel.code[at // 16 - 1]
            there = self.wait & (self.at == at)
            name = one.operands[0] if one.op == "BSYNC" else ""
            if not (self.groups[name] & (self.at != _NONE) & ~there).any():
                self.wait &= ~there

    def _assert_whole(self) -> None:
        places = set(self.at[self.at != _NONE].tolist())
        assert len(places) == 1, "only a part of a warp came"
        assert not self.wait.any()

    def _nothing(self, _: Instruction, __: list[str]) -> None:
        """Nothing: what it orders is in order here."""

    _nop = _yield = _depbar = _membar = _nothing


_SIZES: Final = frozenset({"U8", "S8", "U16", "S16", "64", "128"})
