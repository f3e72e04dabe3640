"""The work of `make gpu`: child processes, their rows, and reasons for rows not measured."""

import importlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.gpu.children import LABORATORY, ROOT, Deadline, last_line, python, run_child
from bench.gpu.report import read_rows
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer, row
from rose.engines.versions import TRANSFORMERS, is_among

# Time limits in seconds. The build may take longer, at the expense of less important work.
BUILD_S: Final = 150.0
TESTS_S: Final = 180.0
TEST_FILE_S: Final = 90.0
ONE_TEST_S: Final = 40
SUITE_S: Final = 45.0
DEMO_S: Final = 130.0
SANITIZER_S: Final = 30.0

NOTHING: Final = Bar(at_most=0)


@dataclass(slots=True)
class Findings:
    """Results of a piece of work; those of a run are added up.

    Args:
        rows: rows in the form of `bench.rows`.
        unmeasured: name and reason of each missing row.
        tests: id, outcome and reason of each test that did not pass.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    unmeasured: list[dict[str, str]] = field(default_factory=list)
    tests: list[tuple[str, str, str]] = field(default_factory=list)

    def cannot(self, names: Sequence[str], why: str) -> None:
        self.unmeasured += [{"name": name, "reason": why} for name in names]

    def extend(self, other: "Findings") -> None:
        self.rows += other.rows
        self.unmeasured += other.unmeasured
        self.tests += other.tests

    @property
    def is_complete(self) -> bool:
        has_failed = any(outcome == "failed" for _, outcome, _ in self.tests)
        return not self.unmeasured and not has_failed


# ---- the build


def build(out: Path, deadline: Deadline) -> str | None:
    """Build the extension and the fat binary in place; return the reason of a failure, or None.

    Args:
        out: folder of the results.
        deadline: time that the build may take.
    """
    log = out / "build.log"
    ending = run_child(
        python("setup.py", "-q", "build_ext", "--inplace"),
        log=log,
        limit_s=deadline.left_s(),
        # Another compiler than those of CI may have more warnings.
        more_environment={"ROSE_CUDA": "on", "CXXFLAGS": "-Wno-error"},
    )
    return None if ending.is_good else f"the build failed: {ending.reason(last_line(log))}"


# ---- the tests

TEST_OUTCOMES: Final = "tests.jsonl"
TEST_ROWS: Final = ("gpu_tests_passed", "gpu_tests_failed", "gpu_tests_skipped")


def pytest_command(*arguments: str) -> list[str]:
    """Return the command of GPU tests, with only the plugins of this folder and no defaults."""
    return python(
        *("-m", "pytest", *arguments, "-m", "gpu", "-v", "-ra", "--confcutdir=tests/gpu"),
        *("-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib"),
        "--strict-markers",
    )


@dataclass(slots=True)
class GpuTests:
    """Some test files, which may need several processes, because a test can end its process.

    Args:
        paths: the files.
        outcomes: outcome and reason by test.
        waiting: tests without an outcome.
        is_collected: whether the tests are complete.
    """

    paths: Sequence[str]
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    is_collected: bool = False

    def of_file(self, path: str) -> "GpuTests":
        """Return the tests of one file; a file without a test is not collected yet."""
        outcomes = {test: how for test, how in self.outcomes.items() if _is_in(path, test)}
        waiting = {test for test in self.waiting if _is_in(path, test)}
        return GpuTests([path], outcomes, waiting, is_collected=bool(outcomes or waiting))

    def read(self, progress: Path) -> str | None:
        """Read the output of a process; return the test in which it ended, if any."""
        running = None
        lines = progress.read_text(encoding="utf-8").splitlines() if progress.exists() else []
        for line in lines:
            try:
                one = json.loads(line)
            except json.JSONDecodeError:
                break
            if "collected" in one:
                self.waiting.update(set(one["collected"]) - set(self.outcomes))
                self.is_collected = True
            elif "began" in one:
                running = one["began"]
            else:
                running = None if one["test"] == running else running
                self.end(one["test"], one["outcome"], one["why"])
        return running

    def end(self, test: str, outcome: str, why: str) -> None:
        self.waiting.discard(test)
        if self.outcomes.get(test, ("",))[0] != "failed":  # a later phase does not repair it
            self.outcomes[test] = (outcome, why)

    def run_once(self, out: Path, limit_s: float, *options: str) -> str:
        """Run the tests without an outcome in one process; return the end of the process."""
        log = out / "tests.log"
        deselect = [part for test in self.outcomes for part in ("--deselect", test)]
        with TemporaryDirectory() as folder:
            progress = Path(folder) / "progress"
            ending = run_child(
                [
                    *pytest_command(*self.paths, *deselect, *options),
                    *("-p", "bench.gpu.progress", f"--progress={progress}"),
                    # Prints every thread and ends the process. Without pytest-timeout these two
                    # options are unknown, which pytest only warns about.
                    *("-o", f"timeout={ONE_TEST_S}", "-o", "timeout_method=thread"),
                ],
                log=log,
                limit_s=limit_s,
            )
            culprit = self.read(progress)
        why = ending.reason(last_line(log))
        if culprit is not None:
            self.end(culprit, "failed", f"its process ended here: {why}")
        return why

    def run(self, out: Path, deadline: Deadline) -> None:
        """Run until every test has an outcome, time is over, or a process completed no test."""
        while not self.is_collected or self.waiting:
            before = len(self.outcomes)
            why = self.run_once(out, deadline.at_most(TEST_FILE_S))
            if len(self.outcomes) == before:
                for test in self.waiting or set(self.paths):
                    self.outcomes[test] = ("failed", f"not run: {why}")
                return


def _is_in(path: str, test: str) -> bool:
    return Path(test.partition("::")[0]).name == Path(path).name


def files_of_tests(root: Path = ROOT) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("tests/gpu/test_*.py"))


def tests(out: Path, deadline: Deadline, files: Sequence[str]) -> Findings:
    """Run the GPU tests: in one process to the first failure, then the rest in one process per
    file.

    Starting takes most of a process's time, but a failure can leave a context in which all later
    tests fail.
    """
    found = Findings()
    allowed = Deadline(deadline.at_most(TESTS_S))
    outcomes: dict[str, tuple[str, str]] = {}
    whole = GpuTests(files)
    if files:  # without a path pytest runs everything that it finds
        whole.run_once(out, allowed.left_s(), "--maxfail=1")
    for path in files:
        file = whole.of_file(path)
        file.run(out, allowed)
        outcomes |= file.outcomes
    with (out / TEST_OUTCOMES).open("w", encoding="utf-8") as lines:
        for test, (outcome, why) in outcomes.items():
            lines.write(json.dumps({"test": test, "outcome": outcome, "why": why}) + "\n")
    count = [sum(outcome == kind for outcome, _ in outcomes.values()) for kind in _OUTCOMES]
    bars = (None, NOTHING, None)
    found.rows = [
        row(name, value, "tests", bar=bar)
        for name, value, bar in zip(TEST_ROWS, count, bars, strict=True)
    ]
    found.tests = not_passed(out)
    return found


def not_passed(out: Path) -> list[tuple[str, str, str]]:
    """Return id, outcome and reason of each test that did not pass in the last run."""
    path = out / TEST_OUTCOMES
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):  # its middle was removed
            one = json.loads(line)
            if one["outcome"] != "passed":
                found.append((one["test"], one["outcome"], one["why"]))
    return found


_OUTCOMES: Final = ("passed", "failed", "skipped")


# ---- the device suites


@dataclass(frozen=True, slots=True)
class Suite:
    """A module with `ROWS`, the names of its rows, and `measure(report)`.

    Args:
        module: imports neither torch nor a driver before `measure`.
        limit_s: time limit of its process.
        is_first: whether it runs before the tests: then its rows exist even if all else fails.
        needs_build: False if it runs without the extension.
        environment: additional variables of its process.
    """

    module: str
    limit_s: float = SUITE_S
    is_first: bool = False
    needs_build: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def promised(self) -> tuple[str, ...]:
        return tuple(importlib.import_module(self.module).ROWS)


def suite(one: Suite, out: Path, deadline: Deadline) -> Findings:
    """Run a suite in a separate process; promised rows that it did not report are unmeasured."""
    found, log = Findings(), out / "suites.log"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        ending = run_child(
            python("-m", "bench.gpu.child", one.module, str(path)),
            log=log,
            limit_s=deadline.at_most(one.limit_s),
            more_environment=one.environment,
        )
        found.rows, found.unmeasured = read_rows(path)
    known = {item["name"] for item in [*found.rows, *found.unmeasured]}
    why = "it was not reported" if ending.is_good else ending.reason(last_line(log))
    found.cannot([name for name in one.promised if name not in known], why)
    return found


# ---- the demo

# Row: its place in report.json, its unit, its bar.
_DEMO: Final = {
    "demo_blocked_by_rollout_ms_p99": (("blocked_by_rollout_ms_p99",), "ms", None),
    "demo_segment_ms_p99": (("segment_ms_p99",), "ms", None),
    "demo_harvested_share": (("arms", "rose", "harvested_share"), "share", None),
    "demo_certificates_granted": (("certificates", "granted"), "certificates", None),
    "demo_certificate_violations": (("certificates", "violations"), "certificates", NOTHING),
    "demo_pauses": (("pauses",), "pauses", None),
}
_DEMO_RATIOS: Final = {
    "demo_ttft_p50_over_alone": "ttft_p50",
    "demo_tpot_p50_over_alone": "tpot_p50",
}
DEMO_ROWS: Final = (*_DEMO_RATIOS, *_DEMO)
DEMO_REPORT: Final = "demo.json"
DEMO_VOID: Final = 3
"""The exit status of a demo whose verdict is void; its report says which rows are."""


def why_no_demo() -> str | None:
    """Return the reason why the demo cannot run with this interpreter, or None."""
    needed = "torch transformers msgspec protobuf psutil matplotlib jinja2"
    for package in needed.split():
        try:
            found = version(package)
        except PackageNotFoundError:
            return f"the demo needs {package}, which is not installed"
        if package == "transformers" and not is_among(found, TRANSFORMERS):
            return f"the demo needs transformers {' or '.join(TRANSFORMERS)}, and {found} is here"
    return None


def demo(out: Path, deadline: Deadline) -> Findings:
    """Run `rose demo --device cuda:0 --quick` and keep its report."""
    found, log = Findings(), out / "demo.log"
    (out / DEMO_REPORT).unlink(missing_ok=True)  # of an earlier run of this part
    if (why := why_no_demo()) is not None:
        found.cannot(DEMO_ROWS, why)
        return found
    with TemporaryDirectory() as folder:
        made = Path(folder) / "demo"
        # Nothing is installed here: `rose` finds the command by the metadata beside the package.
        run_child(
            python("setup.py", "-q", "egg_info"),
            log=log,
            limit_s=deadline.at_most(DEMO_S),
            folder=LABORATORY,
        )
        ending = run_child(
            python(
                *("-m", "rose.cli.main", "demo", "--device", "cuda:0", "--quick"),
                *("--out", str(made)),
            ),
            log=log,
            limit_s=deadline.at_most(DEMO_S),
        )
        if not ending.is_good and ending.status != DEMO_VOID:
            found.cannot(DEMO_ROWS, ending.reason(last_line(log)))
            return found
        text = (made / "report.json").read_text(encoding="utf-8")
    (out / DEMO_REPORT).write_text(text, encoding="utf-8")
    found.extend(demo_rows(json.loads(text)))
    return found


def demo_rows(report: Mapping[str, Any]) -> Findings:
    """Return the rows of a demo's report; rows that it lacks are unmeasured."""
    found = Findings()
    ratios = report["ratios"]
    for name, key in _DEMO_RATIOS.items():
        value, control, peer = (ratios[arm][key] for arm in ("rose", "aa", "share_all"))
        if value is None or control is None:
            found.cannot([name], "the demo had too few requests to say")
            continue
        found.rows += [
            row(
                name,
                value,
                "ratio",
                peer=None if peer is None else Peer("share-all", peer, "ratio"),
                bar=Bar(at_most=1.1),
                is_void=not CONTROL_BAR.is_met(control),
            ),
            row(CONTROL + name, control, "ratio", bar=CONTROL_BAR),
        ]
    for name, (path, unit, bar) in _DEMO.items():
        value: Any = report
        for key in path:
            value = value[key]
        if value is None:
            found.cannot([name], "the demo did not tell")
        else:
            found.rows.append(row(name, value, unit, bar=bar))
    return found


# ---- the sanitizer

# Small tests without torch. Each buffer is an allocation, so that an access beyond it is detected.
_SMALL: Final = "block=16384, count=129, density=0.5, wild=0.3, is_special=False, width=16"
SANITIZED_TESTS: Final = tuple(
    f"tests/gpu/test_codec.py::TestCuda::test_{law}[Case({_SMALL})]"
    for law in (
        "pack_is_the_reference",
        "apply_and_undo_are_the_reference",
        "largest_changes_fit_the_budget",  # top-k
        "digest_is_the_reference",
    )
)
# Top-k reads a slot that another thread may claim at that moment, and repeats with a CAS if it saw
# none. This race is intended, and its reports would hide reports of other races.
RACES_BY_INTENTION: Final = ("largest_changes",)
# The last line of each tool: its number of findings.
SANITIZER_TOOLS: Final = {
    "memcheck": r"ERROR SUMMARY: (\d+) error",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazard",
    "initcheck": r"ERROR SUMMARY: (\d+) error",
}
SANITIZER_ROWS: Final = tuple(f"sanitizer_{tool}_findings" for tool in SANITIZER_TOOLS)


def sanitizer(out: Path, deadline: Deadline) -> Findings:
    """Run a few kernels under compute-sanitizer, once with each tool."""
    found, log = Findings(), out / "sanitizer.log"
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if program is None:
        found.cannot(SANITIZER_ROWS, "compute-sanitizer is not on the path")
        return found
    for name, (tool, pattern) in zip(SANITIZER_ROWS, SANITIZER_TOOLS.items(), strict=True):
        began = log.stat().st_size if log.exists() else 0
        left_out = RACES_BY_INTENTION if tool == "racecheck" else ()
        ending = run_child(
            [
                # Errors of the driver are not checked: rose asks for entries that it may lack.
                *(program, "--tool", tool, *(["--report-api-errors", "no"] * (tool == "memcheck"))),
                *pytest_command(*_without(left_out)),
            ],
            log=log,
            limit_s=deadline.at_most(SANITIZER_S),
        )
        with log.open("rb") as file:
            file.seek(began)
            said = file.read().decode(errors="replace")
        found.extend(sanitizer_row(name, pattern, said, ending.is_good, ending.reason()))
    return found


def _without(words: Sequence[str]) -> list[str]:
    return [test for test in SANITIZED_TESTS if not any(word in test for word in words)]


def sanitizer_row(name: str, pattern: str, said: str, is_good: bool, why: str) -> Findings:
    """Return the row of a tool. It counts only if the tests ran to their end under it."""
    found = Findings()
    counts = re.findall(pattern, said)
    has_run = re.search(r"\d+ (?:passed|failed)", said)
    refused = re.search(r"=+ (Error: .*|.*not supported.*)", said, re.IGNORECASE)
    if counts and has_run and (is_good or int(counts[-1]) > 0):
        found.rows.append(row(name, int(counts[-1]), "findings", bar=NOTHING))
    else:
        found.cannot([name], refused[1].strip() if refused else why)
    return found


def skip_all(names: Sequence[str], why: str) -> Findings:
    found = Findings()
    found.cannot(names, why)
    return found
