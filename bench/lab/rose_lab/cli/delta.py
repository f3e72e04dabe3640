"""`rose delta`: inspect, make, apply and undo the difference between two checkpoints."""

from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.cli.runs import progress, write_output
from rose.errors import InvalidArgument
from rose_lab.checkpoints.apply import Identity, apply_delta, identify
from rose_lab.checkpoints.delta_file import DeltaFile, make_delta_file
from rose_lab.checkpoints.inspection import inspect
from rose_lab.cli.delta_report import density, print_inspection, printable
from rose_lab.numbers import size_text

_EXIT_NEITHER: Final = 1
_NEITHER: Final = "neither the base nor the target"
_STANDINGS: Final = {  # key: (is the base, is the target)
    (True, True): "the base and the target, which are equal",
    (True, False): "the base",
    (False, True): "the target",
    (False, False): _NEITHER,
}
_PATH: Final = click.Path(path_type=Path)


@click.group()
def delta() -> None:
    """Compare two checkpoints, and send, apply or undo only the difference.

    A checkpoint is a safetensors file, or a folder of such files. It is mapped, never loaded, so a
    large checkpoint needs no more memory than a small one.
    """


@delta.command(name="inspect")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--html", "html_path", type=_PATH, metavar="FILE", help="Write a page with plots.")
@click.option(
    "--tensors",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="List the N tensors that change most.",
)
def inspect_checkpoints(old: Path, new: Path, html_path: Path | None, tensors: int) -> None:
    """Report the changes from OLD to NEW, and the cost of sending them.

    The report has densities by tensor and by kind of tensor, steps in ULP, the bytes of each codec,
    entropy bounds, and the time on links of 1 to 100 Gb/s. The exit status is 2 when nothing can be
    compared.
    """
    one, other = open_checkpoint(old), open_checkpoint(new)
    with progress("comparing", one.nbytes + other.nbytes) as advance:
        inspection = inspect(one, other, advance=advance)
    # Written before anything is printed: a failure prints one sentence and no partial result.
    if html_path is not None:
        # Imported here, because it needs the extra `demo`.
        from rose_lab.cli.delta_page import render_page  # noqa: PLC0415

        write_output(html_path, render_page(inspection, old, new), what="the page")
    console = Console(highlight=False)
    print_inspection(console, inspection, most=tensors)
    if html_path is not None:
        console.print(f"page: {html_path}", markup=False, soft_wrap=True)


@delta.command(name="make")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("-o", "--out", type=_PATH, required=True, metavar="FILE", help="Output file.")
def make(old: Path, new: Path, out: Path) -> None:
    """Write the difference between the tensors of OLD and NEW to FILE, for apply and for undo.

    OLD and NEW must have the same tensors, but may divide them into files differently. FILE has the
    format of the update files that a relay keeps.
    """
    one, other = open_checkpoint(old), open_checkpoint(new)
    with progress("packing", one.nbytes) as advance:
        manifest = make_delta_file(one, other, out, advance=advance)
    _print_line(
        f"{out}: {size_text(out.stat().st_size)}, {density(out.stat().st_size, other.nbytes)} of "
        f"{size_text(other.nbytes)}; {manifest.changed:,} elements change"
    )
    if _files(one) != _files(other):
        _print_line(
            f"{out} changes tensors only; {old} and {new} also differ in file names or headers."
        )


def _files(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Return names and headers of a checkpoint's files."""
    names = [file.path.name for file in checkpoint.files] if checkpoint.is_folder else []
    return names, [file.header for file in checkpoint.files]


def _target_options(command: click.decorators.FC) -> click.decorators.FC:
    out = click.option("-o", "--out", type=_PATH, metavar="PATH", help="Write the result to PATH.")
    in_place = click.option("--in-place", is_flag=True, help="Change the files of the checkpoint.")
    return out(in_place(command))


@delta.command(name="apply")
@click.argument("base", type=_PATH)
@click.argument("file", type=_PATH)
@_target_options
def apply(base: Path, file: Path, out: Path | None, in_place: bool) -> None:  # noqa: FBT001
    """Apply FILE to BASE: the result has the tensors of FILE's target, bit for bit.

    With -o the result is written to PATH, whole or not at all, and small files without tensors,
    like config.json, are copied from BASE. With --in-place the files of BASE are changed, and
    restored on any failure. A wrong base is refused, and nothing is left behind.
    """
    _apply(base, file, out, in_place=in_place, undo=False)


@delta.command(name="undo")
@click.argument("checkpoint", type=_PATH)
@click.argument("file", type=_PATH)
@_target_options
def undo(checkpoint: Path, file: Path, out: Path | None, in_place: bool) -> None:  # noqa: FBT001
    """Undo FILE on CHECKPOINT: the result has the tensors of FILE's base."""
    _apply(checkpoint, file, out, in_place=in_place, undo=True)


def _apply(path: Path, file: Path, out: Path | None, *, in_place: bool, undo: bool) -> None:
    if (out is None) != in_place:
        raise InvalidArgument("give either -o PATH or --in-place")
    checkpoint = open_checkpoint(path)
    opened = DeltaFile(file)
    with progress("checking", checkpoint.nbytes) as advance:
        copied, left = apply_delta(checkpoint, opened, out=out, undo=undo, advance=advance)
    _print_line(f"{path}: changed in place" if out is None else f"{out}: written")
    if copied:
        _print_line(f"copied from {path}, because a delta has tensors only: {', '.join(copied)}")
    if left:
        _print_line(f"not copied: {', '.join(left)}")


@delta.command(name="verify")
@click.argument("checkpoint", type=_PATH)
@click.argument("file", type=_PATH)
@click.pass_context
def verify(ctx: click.Context, checkpoint: Path, file: Path) -> None:
    """Report whether CHECKPOINT is the base of FILE, its target, or neither.

    The exit status is 0 for base or target, 1 for neither, 2 when a file cannot be read or FILE is
    damaged. Digests are compared; they find faults, not attackers.
    """
    opened = open_checkpoint(checkpoint)
    delta_file = DeltaFile(file)
    with progress("verifying", opened.nbytes) as advance:
        identity = identify(opened, delta_file, advance=advance)
    standing = _STANDINGS[identity.not_base is None, identity.not_target is None]
    _print_line(f"{checkpoint} is {standing} of {file}.")
    if standing == _NEITHER:
        for sentence in _reasons(identity):
            _print_line(sentence)
        ctx.exit(_EXIT_NEITHER)


def _reasons(identity: Identity) -> list[str]:
    lines = [
        f"Not the base: {identity.not_base}.",
        f"Not the target: {identity.not_target}.",
    ]
    counts = (identity.base_tiles, identity.target_tiles, identity.other_tiles)
    if identity.base_tiles and identity.target_tiles:
        lines.append(
            "Of the tiles that FILE changes, {} equal the base's and {} the target's. Of all "
            "tiles, {} equal neither. An apply may have been interrupted.".format(*counts)
        )
    return lines


def _print_line(sentence: str) -> None:
    Console(highlight=False).print(printable(sentence), markup=False, soft_wrap=True)
