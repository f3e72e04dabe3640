"""Merge the documents of several parts; the latest row of each name counts.

    python -m bench.gpu.merge part-1 part-2 part-3 --out gpu.json

Folders of `make gpu OUT=dir PART=K/N` from machines of one kind and one commit belong together;
others are refused with status 2, and nothing is written. Drivers of one release may differ in their
patch level; all of them are named.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.rows import CONTROL, faults
from bench.usage import Parser
from rose.whole_file import write_whole

NAME: Final = "gpu.json"
# How the reason begins for a row whose part has not run; the name of that part follows.
NOT_RUN: Final = "not run yet: "
# Fields of the machine card that identify neither the device nor its software.
INCIDENTAL: Final = frozenset(
    {
        "clock_sm_mhz",
        "clock_memory_mhz",
        "power_limit_mw",
        "temperature_c",
        "memory_gib",
        "system",
    }
)

Document = dict[str, Any]


class Mismatch(Exception):
    """The documents are not from one run; the message has the reason."""


def read(path: Path) -> Document:
    """Return the document of a file.

    Raises:
        Mismatch: it has no document of `make gpu`.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Mismatch(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Mismatch(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("suite") != "gpu" or faults(document):
        raise Mismatch(f"{path} is not what `make gpu` writes")
    return document


def write(path: Path, document: Document) -> None:
    """Write a document atomically: a concurrent reader sees the previous one."""
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def merged(documents: Mapping[str, Document]) -> Document:
    """Merge documents; each row, or the reason why it is missing, comes from the latest document.

    The statement that a part has not run yet never replaces a result.

    Args:
        documents: documents by name, the latest last; names are for errors.

    Raises:
        Mismatch: they are from different commits or machines.
    """
    (first, first_of_all), *others = documents.items()
    for name, other in others:
        _check_same(first, _identity(first_of_all), name, _identity(other))
    said: dict[str, list[dict[str, Any]]] = {}
    for document in documents.values():
        for row, entries in _by_row(document).items():
            if not _waits(entries) or _waits(said.get(row, [])):
                said[row] = entries
    everything = [one for entries in said.values() for one in entries]
    last = [*documents.values()][-1]
    return last | {
        "machine": last["machine"] | _drivers(documents.values()),
        "rows": [one for one in everything if "reason" not in one],
        "unmeasured": [one for one in everything if "reason" in one],
    }


def _drivers(documents: Iterable[Document]) -> dict[str, str]:
    """Return the versions of the driver, if they are known."""
    known = [one["machine"]["driver"] for one in documents if "driver" in one["machine"]]
    versions = dict.fromkeys(version for one in known for version in one.split(", "))
    return {"driver": ", ".join(versions)} if versions else {}


def _identity(document: Document) -> dict[str, Any]:
    machine = {k: value for k, value in document["machine"].items() if k not in INCIDENTAL}
    if "driver" in machine:  # 580.159.03 is of release 580.159
        machine["driver"] = ".".join(machine["driver"].split(", ")[0].split(".")[:2])
    return machine | {"commit": document["commit"]}


def _check_same(one: str, its: dict[str, Any], other: str, others: dict[str, Any]) -> None:
    for key in its | others:
        mine, theirs = its.get(key), others.get(key)
        if mine != theirs:
            raise Mismatch(f"{one} and {other} do not go together: {key} {mine!r} and {theirs!r}")


def _by_row(document: Document) -> dict[str, list[dict[str, Any]]]:
    """Return each row with its control, or the reason why it is unmeasured."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for one in [*document["rows"], *document.get("unmeasured", [])]:
        entries.setdefault(one["name"].removeprefix(CONTROL), []).append(one)
    return entries


def _waits(entries: Sequence[Mapping[str, Any]]) -> bool:
    return all(one.get("reason", "").startswith(NOT_RUN) for one in entries)


def main(arguments: Sequence[str]) -> int:
    parser = Parser("gpu", prog="python -m bench.gpu.merge", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the latest last")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="merged document")
    options = parser.parse_args(arguments)
    paths = [folder / NAME for folder in options.folders]
    try:
        write(options.out, merged({str(path): read(path) for path in paths}))
    except Mismatch as why:
        parser.error(str(why))
    except OSError as error:
        parser.error(f"cannot write {options.out}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
