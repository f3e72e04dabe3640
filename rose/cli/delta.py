"""`rose delta`: what changed between two checkpoints, as numbers, as a file, applied and undone."""

from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rose.checkpoints.apply import apply_beside
from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.checkpoints.contents import Presence, pairs
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.identity import Identity, Standing, identify
from rose.checkpoints.in_place import apply_in_place
from rose.checkpoints.inspection import inspect
from rose.checkpoints.make import make_delta_file
from rose.cli.delta_report import as_json, density, print_inspection, printable
from rose.cli.runs import progress, write_output
from rose.demo.numbers import size_text
from rose.errors import InvalidArgument

_EXIT_NEITHER: Final = 1
_PATH: Final = click.Path(path_type=Path)


@click.group()
def delta() -> None:
    """Look at what changed between two checkpoints, and send, apply or undo just that.

    A checkpoint is a safetensors file, or a folder of them. It is mapped, never loaded: a large one
    needs no more memory than a small one.
    """


@delta.command(name="inspect")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--json", "json_path", type=_PATH, metavar="FILE", help="Write the numbers too.")
@click.option("--html", "html_path", type=_PATH, metavar="FILE", help="Write a page with plots.")
@click.option(
    "--tensors",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N tensors that change most.",
)
def inspect_checkpoints(
    old: Path, new: Path, json_path: Path | None, html_path: Path | None, tensors: int
) -> None:
    """Say what changed from OLD to NEW, and what sending it would take.

    Densities by tensor and by kind of tensor, steps in ULP, exponents, the bytes that each codec
    really takes with the bounds that entropy sets, and the time on links of 1 to 100 Gb/s. The exit
    status is 2 when nothing can be compared.
    """
    one, other = open_checkpoint(old), open_checkpoint(new)
    with progress("comparing", 2 * _looked_at(one, other, is_both=True)) as advance:
        inspection = inspect(one, other, advance=advance)
    # Written before anything is said: a failure leaves one sentence and no half of a result.
    if json_path is not None:
        write_output(json_path, as_json(inspection, old, new), what="the report")
    if html_path is not None:
        # Here, because it needs the extra `demo`.
        from rose.cli.delta_page import render_page  # noqa: PLC0415

        write_output(html_path, render_page(inspection, old, new), what="the page")
    console = Console(highlight=False)
    print_inspection(console, inspection, most=tensors)
    for name, path in (("numbers", json_path), ("page", html_path)):
        if path is not None:
            console.print(f"{name}: {path}", markup=False, soft_wrap=True)


@delta.command(name="make")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("-o", "--out", type=_PATH, required=True, metavar="FILE", help="Where to write it.")
def make(old: Path, new: Path, out: Path) -> None:
    """Write what turns OLD into NEW, and NEW into OLD, to FILE.

    Tensors that only one of them has, or that differ in shape or dtype, are in it whole.
    """
    one, other = open_checkpoint(old), open_checkpoint(new)
    with progress("packing", _looked_at(one, other, is_both=False)) as advance:
        tensors = make_delta_file(one, other, out, advance=advance)
    size = out.stat().st_size
    changing = sum(any(tile.frame for tile in tensor.tiles) for tensor in tensors)
    _say(
        f"{out}: {size_text(size)}, {density(size, other.nbytes)} of {size_text(other.nbytes)}; "
        f"{changing} of {len(tensors)} tensors change"
    )


def _looked_at(one: Checkpoint, other: Checkpoint, *, is_both: bool) -> int:
    """Return the bytes of all tensors, those that both have once; or of those alone."""
    return sum(
        pair.stored.nbytes
        for pair in pairs(one, other)
        if not is_both or pair.presence is Presence.BOTH
    )


def _target_options(command: click.decorators.FC) -> click.decorators.FC:
    out = click.option("-o", "--out", type=_PATH, metavar="PATH", help="Write it there.")
    in_place = click.option("--in-place", is_flag=True, help="Change the files of the checkpoint.")
    return out(in_place(command))


@delta.command(name="apply")
@click.argument("base", type=_PATH)
@click.argument("file", type=_PATH)
@_target_options
def apply(base: Path, file: Path, out: Path | None, in_place: bool) -> None:  # noqa: FBT001
    """Apply FILE to BASE: the checkpoint that it leads to, byte for byte.

    With -o it is written beside BASE, and appears whole or not at all; small files that are no
    tensors, like config.json, are copied from BASE. With --in-place the files of BASE are changed,
    and changed back on any failure. A wrong base is refused, and nothing of it is left.
    """
    _apply(base, file, out, in_place=in_place, undo=False)


@delta.command(name="undo")
@click.argument("checkpoint", type=_PATH)
@click.argument("file", type=_PATH)
@_target_options
def undo(checkpoint: Path, file: Path, out: Path | None, in_place: bool) -> None:  # noqa: FBT001
    """Take FILE back from CHECKPOINT: the checkpoint that it was made from, byte for byte."""
    _apply(checkpoint, file, out, in_place=in_place, undo=True)


def _apply(path: Path, file: Path, out: Path | None, *, in_place: bool, undo: bool) -> None:
    if (out is None) != in_place:
        raise InvalidArgument("name a place with -o, or say --in-place: one of the two")
    checkpoint = open_checkpoint(path)
    with DeltaFile(file) as delta_file:
        if out is None:
            with progress("checking, applying", 2 * checkpoint.nbytes) as advance:
                apply_in_place(checkpoint, delta_file, undo=undo, advance=advance)
            _say(f"{path}: changed in place")
            return
        with progress("applying", checkpoint.nbytes) as advance:
            beside = apply_beside(checkpoint, delta_file, out, undo=undo, advance=advance)
    _say(f"{out}: written")
    if beside.copied:
        _say(f"copied from {path}, as no delta has them: {', '.join(beside.copied)}")
    if beside.left:
        _say(f"not copied: {', '.join(beside.left)}")


@delta.command(name="verify")
@click.argument("checkpoint", type=_PATH)
@click.argument("file", type=_PATH)
@click.pass_context
def verify(ctx: click.Context, checkpoint: Path, file: Path) -> None:
    """Say whether CHECKPOINT is what FILE was made from, what it leads to, or neither.

    The exit status is 0 when it is one of the two, 1 when it is neither, 2 when one of them cannot
    be read or FILE is not sound. Digests are compared; they find faults, not attackers.
    """
    opened = open_checkpoint(checkpoint)
    with DeltaFile(file) as delta_file, progress("verifying", opened.nbytes) as advance:
        identity = identify(opened, delta_file, advance=advance)
    _say(f"{checkpoint} is {identity.standing.value} of {file}.")
    if identity.standing is Standing.NEITHER:
        for sentence in _reasons(identity):
            _say(sentence)
        ctx.exit(_EXIT_NEITHER)


def _reasons(identity: Identity) -> list[str]:
    said = [
        f"Not the base: {identity.not_base}.",
        f"Not the target: {identity.not_target}.",
    ]
    counts = (identity.base_tiles, identity.target_tiles, identity.other_tiles)
    if identity.base_tiles and identity.target_tiles:
        said.append(
            "Of its tiles that change, {} are the base's and {} the target's; {} of all are of "
            "neither: an apply may have been cut off.".format(*counts)
        )
    return said


def _say(sentence: str) -> None:
    Console(highlight=False).print(printable(sentence), markup=False, soft_wrap=True)
