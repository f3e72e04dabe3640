"""The files of a comparison: `compare.json`, and a figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose.errors import InvalidArgument, Unavailable
from rose.whole_file import write_whole


def write_comparison(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `compare.json` and `compare.svg` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package. The
    figure shows harvest over load, or over latency where there is one load.

    Raises:
        InvalidArgument: `out_dir` cannot be written.
        Unavailable: matplotlib is not installed.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, ensure_ascii=False, allow_nan=False)
        write_whole(out_dir / "compare.json", f"{text}\n".encode())
        if report["loads"]:
            write_whole(out_dir / "compare.svg", _figure(report).encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the comparison to {out_dir}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None


def _figure(report: Mapping[str, Any]) -> str:
    try:
        from rose.cli.compare_plots import draw_prices, draw_sweep  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"compare.svg needs {error.name}, which is not installed; "
            f"install rose-rl[demo] (compare.json is written without it)"
        ) from None
    loads = report["loads"]
    return draw_sweep(report) if len(loads) > 1 else draw_prices(report, loads[-1])
