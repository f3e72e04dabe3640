"""Output of a run's record: tables, `*.json`, `report.html`."""

import importlib.util
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.errors import InvalidArgument
from rose.units import MIB
from rose.whole_file import write_whole
from rose_lab.demo.record import WORKERS, RunRecord
from rose_lab.demo.schemes import CONTROL
from rose_lab.demo.summary import (
    BROKER_HEADERS,
    RL_LOOP_HEADERS,
    VERSION_HEADERS,
    broker_row,
    last_word,
    rl_loop_row,
    summarise,
    version_rows,
)
from rose_lab.numbers import fixed, number, percent, print_rows

_HEADERS: Final = (
    "req.",
    "TTFT ms\np50/p99",
    "TPOT ms\np50/p99",
    "x alone p50\nTTFT/TPOT",
    "x alone p99\nTTFT/TPOT",
    "SLO\nmet",
    "busy",
    "rollout\ntokens/s",
    "of their\nrate alone",
)
_SAID_BELOW: Final = 0.5
"""If a smaller share of the certifiable idle time was harvested, the report names the refusals."""
_VERSIONS_OPEN: Final = 8
"""A table with more versions starts folded."""


def print_arms(report: Mapping[str, Any], console: Console) -> None:
    """Print the arms as rows."""
    print_rows(console, ("arm", *_HEADERS), arm_rows(report))


def print_table(report: Mapping[str, Any], console: Console) -> None:
    """Print the tables, then sentences on lending, and the verdict.

    RL loop and broker have a table only if the run had them.
    """
    print_arms(report, console)
    if report["weights"] is not None:
        print_rows(console, RL_LOOP_HEADERS, [rl_loop_row(report)])
    if report["broker"] is not None:
        print_rows(console, BROKER_HEADERS, [broker_row(report["broker"])])
        console.print(Text(last_word(report["broker"])))
    for sentence in lending_sentences(report):
        console.print(Text(sentence))
    _print_verdict(report["verdict"], console)


def print_loads(report: Mapping[str, Any], console: Console) -> None:
    """Print the arms and certificates at each load, then the verdict."""
    for at in report["loads"]:
        alone = at["arms"]["alone"]
        title = (
            f"Load {at['load']:g}, {report['mode']}: {alone['requests']} requests, serving alone "
            f"is busy {percent(alone['busy_share'])} of the time"
        )
        console.print(Text(title, style="bold"))
        print_arms(at, console)
        late = [f"{arm} {percent(share)}" for arm, share in at["late_token_share"].items()]
        console.print(Text(f"Late tokens: {', '.join(late)}."))
        verified = [
            f"{arm} {found['verified']}/{found['granted']}"
            for arm, found in at["certificates"].items()
        ]
        if verified:
            console.print(Text(f"Certificates verified: {', '.join(verified)}."))
    _print_verdict(report["verdict"], console)


def _print_verdict(verdict: Mapping[str, Any], console: Console) -> None:
    missed = any(check["ok"] is False for check in verdict["checks"])
    style = "bold red" if verdict["void"] else "bold yellow" if missed else "bold"
    console.print(Text(verdict["sentence"], style=style))


def lending_sentences(report: Mapping[str, Any]) -> list[str]:
    """Return sentences on targets, slices and harvest, with the refusals if harvest is low."""
    slo, slices, rose = report["slo"], report["slices"], report["arms"]["rose"]
    sentences = [
        (
            f"Targets from {slo['from']}: TTFT {number(slo['ttft_ms'])} ms, TPOT "
            f"{number(slo['tpot_ms'])} ms. Set up in {number(report['setup_s'])} s; "
            f"{slices['judged']} slices judged, {slices['void']} void, "
            f"{slices['repeated']} repeated."
        ),
        (
            f"Certifiable idle time: {percent(report['certifiable_idle_share'])} of the run. "
            f"Rose harvested {percent(report['harvest_over_certifiable'])} of it by tokens, "
            f"{percent(report['harvested_time_over_certifiable'])} by time."
        ),
    ]
    harvest = report["harvest_over_certifiable"]
    if rose["requests"] and (harvest is None or harvest < _SAID_BELOW):
        reasons = [f"{name} {count}" for name, count in report["refusals"].items() if count]
        sentences.append(f"Quanta refused: {', '.join(reasons) or 'none'}.")
        if report["binding"] is not None:
            sentences.append(f"The last refusal: {report['binding']['sentence']}.")
    return sentences


def write_report(record: RunRecord, out_dir: Path) -> None:
    """Write `report.json`, which needs no optional package, and `report.html` into `out_dir`."""
    report = summarise(record)
    write_json(report, out_dir, "report")
    _write(out_dir, "report.html", render_html(record, report))


def write_json(report: Mapping[str, Any], out_dir: Path, name: str) -> None:
    """Write `NAME.json` atomically into `out_dir`, creating the directory if it is missing.

    Raises:
        InvalidArgument: `out_dir` is not a directory, or cannot be written.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    _write(out_dir, f"{name}.json", f"{text}\n")


def write_compared(report: Mapping[str, Any], out_dir: Path) -> list[Path]:
    """Write `compare.json` and, where matplotlib is installed, `compare.svg`; return their paths.

    Raises:
        InvalidArgument: `out_dir` is not a directory, or cannot be written.
    """
    write_json(report, out_dir, "compare")
    written = [out_dir / "compare.json"]
    if importlib.util.find_spec("matplotlib") is not None:
        from rose_lab.demo.frontier_plot import draw_frontier  # noqa: PLC0415 (optional package)

        _write(out_dir, "compare.svg", draw_frontier(report))
        written.append(out_dir / "compare.svg")
    return written


def _write(out_dir: Path, name: str, text: str) -> None:
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        write_whole(out_dir / name, text.encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the report to {out_dir}: {error.strerror or error}; "
            f"name a directory that can be written"
        ) from None


def render_html(record: RunRecord, report: Mapping[str, Any]) -> str:
    """Return a self-contained page: no external script, style sheet, image or font."""
    # Imported here, because the JSON is written without these optional packages.
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    from rose_lab.demo.plots import draw_latencies, draw_rl_loop, draw_timeline  # noqa: PLC0415

    template = (
        resources.files("rose_lab.demo").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    rl_loop = record.rl_loop
    return environment.from_string(template).render(
        report=report,
        headers=["arm", *_HEADERS],
        rows=arm_rows(report),
        number=number,
        percent=percent,
        mebibytes=lambda size_bytes: number(size_bytes / MIB),
        latencies=Markup(draw_latencies(record)),
        timeline=Markup(draw_timeline(record.timeline)),
        broker_headers=BROKER_HEADERS,
        broker_row=broker_row,
        last_word=last_word,
        rl_loop_headers=RL_LOOP_HEADERS,
        rl_loop_row=[] if rl_loop is None else rl_loop_row(report),
        rl_loop=Markup("" if rl_loop is None else draw_rl_loop(record, rl_loop)),
        lending=lending_sentences(report),
        version_headers=[*VERSION_HEADERS, *WORKERS],
        versions=[] if rl_loop is None else version_rows(rl_loop),
        versions_open=_VERSIONS_OPEN,
    )


def arm_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return one row per arm, with a cell for the column "arm" and for each of `_HEADERS`."""
    rows = []
    for arm, numbers in report["arms"].items():
        ratio = report["ratios"].get("aa" if arm == CONTROL else arm)
        rows.append(
            [
                arm.replace("_", " "),
                str(numbers["requests"]),
                *(
                    "/".join(number(numbers[f"{metric}_ms_p{p}"]) for p in (50, 99))
                    for metric in ("ttft", "tpot")
                ),
                *(
                    ""
                    if ratio is None
                    else f"{fixed(ratio[f'ttft_p{p}'])}/{fixed(ratio[f'tpot_p{p}'])}"
                    for p in (50, 99)
                ),
                percent(numbers["slo_attainment"]),
                percent(numbers["busy_share"]),
                number(numbers["rollout_tokens_per_s"]),
                percent(numbers["harvested_tokens_share"]),
            ]
        )
    return rows
