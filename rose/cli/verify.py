"""`rose verify LOG`: check every certificate again, by code that did not grant it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rose.slo.audit import CAUSES, Miss, audit
from rose.slo.verify import Verification, verify_log
from rose.slo.verify_waits import WaitTotals
from rose.units import NS_PER_MS, NS_PER_S

_EXIT_VIOLATED: Final = 1
_EXIT_OPEN: Final = 3


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--audit",
    "is_audited",
    is_flag=True,
    help="Also report the cause of each missed token, and the sums of waits for rollouts.",
)
@click.pass_context
def verify(ctx: click.Context, log: Path, *, is_audited: bool) -> None:
    """Check every certificate of LOG again, independently of the code that granted it.

    The exit status is 0 when all certificates hold, 1 when one does not hold or a mechanism was
    switched off, 2 when LOG cannot be read, 3 when all records hold but LOG has no end, because its
    writer still runs or was killed.
    """
    verification = verify_log(log, allow_open=True)
    misses = audit(log) if is_audited else None
    console = Console(highlight=False)
    console.print(_kinds(verification, log))
    if misses:
        console.print(_miss_table(misses))
    if misses is not None:
        console.print(_cause_sentence(misses), soft_wrap=True)
        for sentence in _wait_sentences(verification.waits):
            console.print(sentence, soft_wrap=True)
    for sentence in _remarks(verification):
        console.print(sentence, soft_wrap=True)
    for violation in verification.violations:
        console.print(f"- {violation}", markup=False, soft_wrap=True)
    if verification.violations or verification.without:
        ctx.exit(_EXIT_VIOLATED)
    if not verification.is_complete:
        console.print(f"The first {verification.records} records hold; the log has no end.")
        ctx.exit(_EXIT_OPEN)
    console.print("Every certificate holds.")


def _kinds(verification: Verification, log: Path) -> Table:
    """Return a table of record counts."""
    table = Table("kind of record", title=f"Certificates of {escape(str(log))}")
    table.add_column("records", justify="right")
    for kind, count in sorted(verification.kinds.items()):
        table.add_row(escape(kind), str(count))
    table.add_section()
    table.add_row("all records", str(verification.records))
    table.add_row("granted", str(verification.granted))
    table.add_row("violations", str(len(verification.violations)))
    return table


def _remarks(verification: Verification) -> Iterator[str]:
    """Yield remarks besides the violations."""
    forced = verification.kinds.get("FORCED", 0)
    if forced:
        yield f"The watchdog let {forced} segments through a closed gate."
    if verification.unbounded:
        yield f"{verification.unbounded} serving steps had no upper estimate."
    if verification.violations and not verification.is_complete:
        yield "The log has no end: its writer still runs, or was killed."
    if verification.without:
        names = " and ".join(verification.without)
        yield f"This log was made without {names} for an experiment, so it is no proof."


_ROWS_MAX: Final = 20


def _cause_sentence(misses: Sequence[Miss]) -> str:
    """Return the number of misses by cause."""
    if not misses:
        return "No token was missed."
    counts = Counter(miss.cause for miss in misses)
    by_cause = ", ".join(f"{counts[part]} {part.value}" for part in CAUSES if counts[part])
    return f"{len(misses)} missed, by cause: {by_cause}."


def _wait_sentences(waits: WaitTotals) -> Iterator[str]:
    """Yield what serving waited beyond certified segments: the worst sum, and each ten minutes."""
    budget_ms = waits.budget_ns / NS_PER_MS
    worst_ms = waits.worst_ns / NS_PER_MS
    verdict = "within" if waits.worst_ns <= waits.budget_ns else "BEYOND"
    yield (
        f"Serving's waits for segments: {waits.count}; beyond their certificates at most "
        f"{worst_ms:.1f} ms in ten minutes, {verdict} the budget of {budget_ms:g} ms."
    )
    for began_ns, sum_ns, count in waits.windows:
        yield (
            f"From {began_ns / NS_PER_S:.1f} s: {sum_ns / NS_PER_MS:.1f} ms in ten minutes (waits: "
            f"{count})."
        )
    if waits.evicted:
        yield f"Borrowers removed: {waits.evicted}."


def _miss_table(misses: Sequence[Miss]) -> Table:
    """Return a table of the worst misses, by excess over their targets.

    Args:
        misses: at least one; at most `_ROWS_MAX` are shown.
    """
    shown = sorted(misses, key=lambda miss: miss.target_ms - miss.took_ms)[:_ROWS_MAX]
    title = "Missed tokens, in ms"
    if len(shown) < len(misses):
        title += f", the worst {len(shown)} of {len(misses)}"
    table = Table(title=title)
    for name in ("request", "token", "took", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    table.add_column("of which")
    for miss in shown:
        table.add_row(
            str(miss.request),
            str(miss.token),
            f"{miss.took_ms:.1f}",
            f"{miss.target_ms:.1f}",
            miss.cause.value,
            _parts(miss),
        )
    return table


def _parts(miss: Miss) -> str:
    """Return the parts of a missed token's time in ms, the longest first, without parts of 0."""
    parts = sorted(miss.parts_ns.items(), key=lambda one: -one[1])
    return ", ".join(f"{part.value} {ns / NS_PER_MS:.1f}" for part, ns in parts if ns > 0)
