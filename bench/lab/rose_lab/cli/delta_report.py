"""Tables of an inspection, for the terminal and the HTML page."""

from typing import Final

from rich.console import Console

from rose_lab.checkpoints.dtype_counts import DtypeCounts
from rose_lab.checkpoints.inspection import (
    COORDINATES,
    DENSE,
    GAP,
    GAP_XOR_ZSTD,
    KINDS,
    STRAT,
    Inspection,
    TensorChange,
)
from rose_lab.numbers import number, print_rows, size_text

GIGABITS_PER_S: Final = (1, 10, 25, 100)
CODEC_NAMES: Final = {
    DENSE: "dense",
    COORDINATES: "index + value",
    GAP_XOR_ZSTD: "gap + XOR, zstd",
    GAP: "rose GAP",
    STRAT: "rose STRAT",
}
BOUND_NAMES: Final = {"iid": "bound, i.i.d.", "class": "bound, by exponent"}
_NAMED: Final = 5


def print_inspection(console: Console, inspection: Inspection, *, most: int) -> None:
    """Print an inspection.

    Args:
        console: output.
        inspection: result to print.
        most: number of tensors to list.
    """
    console.print(summary(inspection), markup=False, soft_wrap=True)
    for sentence in uncompared(inspection):
        console.print(sentence, markup=False, soft_wrap=True)
    print_rows(console, ("kind", "tensors", "elements", "changed", "density"), kinds(inspection))
    listed = sorted(inspection.tensors, key=lambda one: (-one.changed, one.name))[:most]
    if most and inspection.changed:
        rows = [tensor_row(one) for one in listed if one.changed]
        print_rows(console, ("tensors that change most", "elements", "changed", "density"), rows)
    if inspection.changed:
        for about, headers, row in steps(inspection):
            print_rows(console, (about, *headers), [("changes", *row)])
    headers = ("codec", "bytes", "B/change", "of dense", *(f"{one} Gb/s" for one in GIGABITS_PER_S))
    print_rows(console, headers, codecs(inspection))


def summary(inspection: Inspection) -> str:
    """Return one sentence with the number and share of changed elements."""
    tensors = len(inspection.tensors)
    return (
        f"{inspection.changed:,} of {inspection.elements:,} elements change "
        f"({density(inspection.changed, inspection.elements)}) in {tensors:,} "
        f"tensor{'' if tensors == 1 else 's'}"
    )


def uncompared(inspection: Inspection) -> list[str]:
    """Return a sentence for each reason why tensors were not compared."""
    lines = []
    for names, what in (
        (inspection.only_old, "only in the old checkpoint"),
        (inspection.only_new, "only in the new checkpoint"),
        ([f"{one} ({a} -> {b})" for one, a, b in inspection.unlike], "of another dtype or shape"),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(printable(f"not compared, {what}: {', '.join(names[:_NAMED])}{more}"))
    return lines


def kinds(inspection: Inspection) -> list[tuple[str, ...]]:
    """Return one row of cells per kind of tensor present."""
    rows = []
    for kind in KINDS:
        found = [one for one in inspection.tensors if one.kind == kind]
        if found:
            elements, changed = (
                sum(getattr(one, name) for one in found) for name in ("elements", "changed")
            )
            counts = (f"{one:,}" for one in (len(found), elements, changed))
            rows.append((kind, *counts, density(changed, elements)))
    return rows


def tensor_row(tensor: TensorChange) -> tuple[str, ...]:
    """Return a tensor's row of cells."""
    return (
        printable(tensor.name),
        f"{tensor.elements:,}",
        f"{tensor.changed:,}",
        density(tensor.changed, tensor.elements),
    )


def steps(inspection: Inspection) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return (title, headers, cells) for each dtype with changes."""
    found = []
    for dtype, counts in inspection.counts.items():
        if counts.changed:
            sizes = counts.steps()
            shares = (f"{100 * one / counts.changed:.1f} %" for one in sizes.values())
            about = f"{dtype}, step in {_step_unit(counts)}"
            found.append((about, tuple(sizes), tuple(shares)))
    return found


def _step_unit(counts: DtypeCounts) -> str:
    """Return the unit of a step: ULP (unit in the last place) for floats, "units" for integers."""
    return "ULP" if counts.has_exponents else "units"


def codecs(inspection: Inspection) -> list[tuple[str, ...]]:
    """Return a row of cells for each codec, then one for each lower bound."""
    taken: dict[str, float] = {
        CODEC_NAMES[codec]: size for codec, size in inspection.nbytes().items()
    }
    taken |= {BOUND_NAMES[bound]: size for bound, size in inspection.bounds().items()}
    dense = inspection.nbytes()[DENSE]
    return [
        (
            name,
            size_text(size),
            f"{size / inspection.changed:.2f}" if inspection.changed else "-",
            density(size, dense),
            *(seconds_text(seconds(size, rate)) for rate in GIGABITS_PER_S),
        )
        for name, size in taken.items()
    ]


def printable(text: str) -> str:
    """Escape unprintable characters, which a terminal could interpret."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)


def seconds(nbytes: float, gigabits_per_s: float) -> float:
    """Return the time in seconds that `nbytes` take on a fully used link."""
    return 8 * nbytes / (gigabits_per_s * 1e9)


def seconds_text(value: float) -> str:
    """Write a duration with its unit."""
    if value < 1e-3:
        return f"{number(value * 1e6)} µs"
    return f"{number(value * 1e3)} ms" if value < 1 else f"{number(value)} s"


def density(part: float, whole: float) -> str:
    """Write a share as a percentage with three significant digits."""
    return f"{100 * part / whole:.3g} %" if whole else "-"
