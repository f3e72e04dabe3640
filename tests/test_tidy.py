"""Keep the style of the project true by test.

Every check looks at one file and yields findings: a line, what is wrong there, and what to write
instead. Every check is also shown a planted violation below, so it cannot rot unseen.
"""

import ast
import functools
import posixpath
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[1]
THIS = PurePosixPath("tests/test_tidy.py")  # it spells out what it forbids
LABORATORY = PurePosixPath("bench/lab")


@functools.cache
def parsed(text: str, name: str) -> ast.Module:
    return ast.parse(text, filename=name)


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the project: its path from the root, and its text."""

    path: PurePosixPath
    text: str

    def is_python_of_rose(self) -> bool:
        return self.path.parts[0] == "rose" and self.path.suffix == ".py"

    def is_python_of_a_package(self) -> bool:
        """Return True for a Python file that a package installs, rose or the laboratory."""
        return self.is_python_of_rose() or (
            self.path.is_relative_to(LABORATORY / "rose_lab") and self.path.suffix == ".py"
        )

    def is_cpp(self) -> bool:
        return self.path.suffix in {".h", ".cpp"}

    def is_core(self) -> bool:
        """Return True for a C++ file of an extension."""
        return self.is_cpp() and self.rooted().parts[0] == "csrc"

    def rooted(self) -> PurePosixPath:
        """Return the path from the root of its distribution."""
        is_lab = self.path.is_relative_to(LABORATORY)
        return self.path.relative_to(LABORATORY) if is_lab else self.path

    def tree(self) -> ast.Module:
        return parsed(self.text, str(self.path))

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


Finding = tuple[int, str]
Check = Callable[[Source], Iterator[Finding]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


# --- which way Python imports go ------------------------------------------------------------------

GROUND: Final = (
    "errors",
    "thread",
    "closing",
    "units",
    "clock",
    "config",
    "events",
    "addresses",
    "whole_file",
    "telemetry",
)
TOP: Final = ("cli", "node", "cluster", "adapters")
# A room may import rooms of a lower floor. `rose` itself stands on the ground floor: what it
# imports, every user of any part of rose pays for.
FLOORS: Final = {
    "_core": 0,
    **dict.fromkeys(("", *GROUND), 1),
    **dict.fromkeys(("memory", "compute", "slo", "kernels"), 2),
    **dict.fromkeys(("executor", "scheduler", "transfer"), 3),
    **dict.fromkeys(("checkpoints", "engines"), 4),
    "api": 5,
    **dict.fromkeys((*TOP, "__main__"), 6),
    "cli": 7,
}
# Rooms of the laboratory. Each may import all of rose but its commands, which `cli` builds on.
LABORATORY_FLOORS: Final = {
    **dict.fromkeys(("", "_sim", "machine", "numbers", "plot_style"), 0),
    **dict.fromkeys(("traces", "checkpoints", "broker"), 1),
    "sim": 2,
    "demo": 3,
    "cli": 4,
}
FRAMEWORKS: Final = frozenset({"torch", "transformers", "triton", "vllm", "sglang", "cupy"})
FRAMEWORK_ROOMS: Final = frozenset({"engines", "adapters", "kernels"})
# The tensor edge of transfer looks at tensors of torch, and imports it when it is given one.
TENSOR_EDGE: Final = PurePosixPath("rose/transfer/codec/tensor.py")


def room_of(path: PurePosixPath) -> str:
    """Return the room of a file of a package: its folder, or its own name on the ground floor."""
    parts = path.parts[path.parts.index("rose_lab" if "rose_lab" in path.parts else "rose") :]
    name = parts[1] if len(parts) > 2 else path.stem
    return "" if name == "__init__" else name


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything a module imports, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@check
def imports_go_down(source: Source) -> Iterator[Finding]:
    if not source.is_python_of_rose():
        return
    room = room_of(source.path)
    if room not in FLOORS:
        yield 1, f"'{room}' is on no floor; put the file into a room of docs/architecture.md"
        return
    tree = source.tree()
    if room == "":  # What only type checkers read costs nobody anything.
        body = [node for node in tree.body if not is_for_type_checkers(node)]
        tree = ast.Module(body=body, type_ignores=[])
    for line, name in imports(tree):
        parts = name.split(".")
        if parts[0] == "rose_lab":
            yield line, "rose imports the laboratory, another distribution; move this there"
        if parts[0] != "rose":
            continue
        other = parts[1] if len(parts) > 1 and parts[1] in FLOORS else ""
        if other in {room, ""}:
            continue
        if room in GROUND and other in GROUND:
            if GROUND.index(other) > GROUND.index(room):
                yield line, f"{room} imports {other}; on the ground floor: {' <- '.join(GROUND)}"
        elif FLOORS[other] == FLOORS[room]:
            yield line, f"{room} imports its sibling {other}; exchange values, joined one floor up"
        elif FLOORS[other] > FLOORS[room]:
            yield line, f"{room} imports {other}, which is above it; pass the part to a constructor"


@check
def laboratory_imports_go_down(source: Source) -> Iterator[Finding]:
    if not source.is_python_of_a_package() or source.is_python_of_rose():
        return
    room = room_of(source.path)
    if room not in LABORATORY_FLOORS:
        yield 1, f"'{room}' is on no floor; put the file into a room of docs/architecture.md"
        return
    for line, name in imports(source.tree()):
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if package in {"bench", "tests"}:
            yield line, f"the laboratory imports {package}, which is installed nowhere"
        elif (package, other) == ("rose", "cli") and room != "cli":
            yield line, f"{room} imports rose.cli; only the commands of the laboratory may"
        elif package != "rose_lab" or other == room or other not in LABORATORY_FLOORS:
            continue
        elif 0 < LABORATORY_FLOORS[other] == LABORATORY_FLOORS[room]:
            yield line, f"{room} imports its sibling {other}; exchange values, joined one floor up"
        elif LABORATORY_FLOORS[other] > LABORATORY_FLOORS[room]:
            yield line, f"{room} imports {other}, which is above it; pass the part to a constructor"


def imports_inside_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what is imported when a function runs, not when the module is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(ast.Module(body=node.body, type_ignores=[]))


@check
def frameworks_stay_in_engines(source: Source) -> Iterator[Finding]:
    if not source.is_python_of_rose() or room_of(source.path) in FRAMEWORK_ROOMS:
        return
    tree = source.tree()
    lazy = set(imports_inside_functions(tree)) if source.path == TENSOR_EDGE else set()
    for line, name in imports(tree):
        if (framework := name.split(".")[0]) not in FRAMEWORKS:
            continue
        if framework == "torch" and (line, name) in lazy:
            continue
        yield line, f"{framework} is imported here; only rose/engines may: move this there"


# --- which way C++ includes go --------------------------------------------------------------------

CORE_FLOORS: Final = {
    "kernels": 0,  # the headers of kernels/: what device code and its launchers agree on
    "base": 0,
    "driver": 1,
    **dict.fromkeys(("memory", "compute", "slo", "transfer", "scheduler"), 2),
    "coserving": 3,
    "sim": 3,  # of the laboratory
    **dict.fromkeys(("bind", "bind_sim"), 4),
}
BINDINGS: Final = frozenset({"bind", "bind_sim"})
INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


@check
def includes_go_down(source: Source) -> Iterator[Finding]:
    if not source.is_core():
        return
    room = source.rooted().parts[1]
    if room not in CORE_FLOORS:
        yield 1, f"csrc/{room} is on no floor; the rooms are {', '.join(CORE_FLOORS)}"
        return
    for match in INCLUDE.finditer(source.text):
        line, (bracket, header) = source.line_of(match.start()), match.groups()
        other = header.split("/")[0]
        if bracket == "<":
            if re.match(r"pybind11/|Python\.h", header) and room not in BINDINGS:
                yield line, f"<{header}> outside csrc/bind; give bind a plain C++ interface"
            if re.match(r"cuda|nvml|driver_types", header):
                yield line, f"<{header}>: declare what is used in csrc/driver, no toolkit is needed"
        elif "/" not in header or other not in CORE_FLOORS:
            yield line, f'"{header}": name the room too, as in "{room}/{header.split("/")[-1]}"'
        elif other != room and CORE_FLOORS[other] == CORE_FLOORS[room] and room not in BINDINGS:
            yield line, f"{room} includes its sibling {other}; join the two in coserving or bind"
        elif CORE_FLOORS[other] > CORE_FLOORS[room]:
            yield line, f"{room} includes {other}, which is above it; pass the part in"


# --- what no line of Python says ------------------------------------------------------------------


@check
def python_says_nothing_banned(source: Source) -> Iterator[Finding]:
    if not source.is_python_of_a_package():
        return
    room = room_of(source.path)
    for node in ast.walk(source.tree()):
        match node:
            case ast.Assert():
                yield node.lineno, "assert is stripped by -O; call check() of rose.errors"
            case ast.Call(func=ast.Name(id="print")) if room != "cli":
                yield node.lineno, "print; emit an event, or return the text to rose/cli"
            case ast.Call(func=ast.Name(id="breakpoint")):
                yield node.lineno, "breakpoint; remove it"
            case ast.Call(func=ast.Name(id="exit" | "quit")):
                yield node.lineno, "exit ends somebody's process; raise a RoseError"
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os"), attr="_exit" | "abort" as name)
            ):
                yield node.lineno, f"os.{name} ends somebody's process; raise a RoseError"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="threading"), attr="Thread")):
                yield node.lineno, "a thread that can die unseen; use Thread of rose.thread"
            case ast.ImportFrom(module="threading", names=names) if any(
                one.name == "Thread" for one in names
            ):
                yield node.lineno, "a thread that can die unseen; use Thread of rose.thread"
            case ast.ExceptHandler(type=kind) if room != "executor" and is_broad(kind):
                yield node.lineno, "broad except; catch the class you can act on"


def is_broad(kind: ast.expr | None) -> bool:
    match kind:
        case None | ast.Name(id="Exception" | "BaseException"):
            return True
        case ast.Tuple(elts=kinds):
            return any(is_broad(one) for one in kinds)
    return False


def names_of_module(tree: ast.Module, module: str) -> set[str]:
    """Return the names that `import module` (`as ...`) binds in a file."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == module
    }


def uses_of(tree: ast.Module, module: str, attributes: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, attribute) of each use of `module.attribute`, however it was imported."""
    names = names_of_module(tree, module)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                if name in names and attribute in attributes:
                    yield node.lineno, attribute
            case ast.ImportFrom(module=origin, names=aliases) if origin == module:
                for alias in aliases:
                    if alias.name in attributes:
                        yield node.lineno, alias.name


ENVIRONMENT: Final = frozenset({"environ", "environb", "getenv", "putenv", "unsetenv"})
TIME: Final = frozenset(
    f"{name}{suffix}"
    for name in ("time", "monotonic", "perf_counter", "clock_gettime")
    for suffix in ("", "_ns")
) | {"sleep"}
NOW: Final = frozenset({"now", "utcnow", "today"})


@check
def environment_is_read_in_config(source: Source) -> Iterator[Finding]:
    if source.is_python_of_a_package() and source.path != PurePosixPath("rose/config.py"):
        for line, name in uses_of(source.tree(), "os", ENVIRONMENT):
            yield line, f"os.{name}; read it in rose/config.py and pass the value"


@check
def time_comes_from_a_clock(source: Source) -> Iterator[Finding]:
    if not source.is_python_of_a_package() or source.path == PurePosixPath("rose/clock.py"):
        return
    tree = source.tree()
    for line, name in uses_of(tree, "time", TIME):
        yield line, f"time.{name}; take a Clock of rose.clock as an argument"
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id="datetime" | "date")
                    | ast.Attribute(attr="datetime" | "date"),
                    attr=name,
                )
            ) if name in NOW:
                yield node.lineno, f"{name}(); take a Clock of rose.clock as an argument"


WAITS: Final = frozenset({"acquire", "communicate", "get", "join", "wait"})


@check
def waits_have_deadlines(source: Source) -> Iterator[Finding]:
    """Look at benches and examples; a test is stopped by pytest, bench/gpu by its own parent."""
    path = source.path
    if path.suffix != ".py" or path.parts[0] not in {"bench", "examples"} or "gpu" in path.parts:
        return
    if source.is_python_of_a_package():
        return
    tree = source.tree()
    # A coroutine is cancelled from outside.
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
                if name in WAITS and id(node) not in awaited:
                    yield node.lineno, f"{name}() waits for ever; pass a time limit"
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="subprocess"), attr="run"), keywords=named
            ) if "timeout" not in {one.arg for one in named}:
                yield node.lineno, "subprocess.run waits for ever; pass timeout="


# --- what no line of C++ says ---------------------------------------------------------------------

COMMENT_OR_STRING: Final = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
# A call, not a declaration (`Status abort();`) and not a member of ours (`gate.abort()`).
CALL: Final = r"(?:(?<![\w>])(?:std)?::|(?:^|[;{}()!&|?,=]|(?<!:):|\belse|\breturn|\bdo)\s*)"
CPP_BANNED: Final = [
    (
        CALL + r"(abort|exit|_exit|_Exit|quick_exit|terminate|__builtin_trap)\s*\(",
        "ends somebody's process; return a Status",
    ),
    (CALL + r"(assert)\s*\(", "is stripped by -DNDEBUG; use ROSE_CHECK"),
    (CALL + r"(f?printf|puts|rand|srand)\s*\(", "has no place in the core; return the value"),
    (r"\b(std::c(?:out|err|log))\b", "has no place in the core; return the text"),
    (r"\.\s*(detach)\s*\(\s*\)", "leaves a thread behind; join it in the class that started it"),
    (
        r"\b(gil_scoped_\w+|release_gil_before_calling_\w+|PyGILState_\w+|Py_BEGIN_ALLOW_\w+)\b",
        "ends the process if the interpreter finalises meanwhile; use csrc/bind/unlocked.h",
    ),
    (r"\b(std::random_device)\b", "cannot be replayed; take a seed as an argument"),
]


def without_comments(text: str) -> str:
    """Return C++ with comments and strings blanked, every line where it was."""
    return COMMENT_OR_STRING.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


@check
def cpp_says_nothing_banned(source: Source) -> Iterator[Finding]:
    if not source.is_core():
        return
    code = without_comments(source.text)
    for pattern, reason in CPP_BANNED:
        for match in re.finditer(pattern, code, re.MULTILINE):
            yield source.line_of(match.start(1)), f"{match[1]} {reason}"
    if source.rooted().parts[1] not in BINDINGS:
        for match in re.finditer(r"\bthrow\b", code):
            yield source.line_of(match.start()), "throw outside csrc/bind; return a Status"


@check
def headers_are_guarded(source: Source) -> Iterator[Finding]:
    if source.path.suffix == ".h" and "#pragma once" not in source.text:
        yield 1, "this header may be included twice; add #pragma once"


# --- what no file says ----------------------------------------------------------------------------

LEFTOVERS: Final = [
    (r"\bTODO\b(?! ?\(#\d+\))", "a TODO without an issue; write TODO(#n), or do it"),
    (r"\b(?:FIXME|XXX|HACK)\b", "a leftover; mend it, or write TODO(#n)"),
    (r"^(?:<<<<<<<|>>>>>>>) ", "a conflict marker; resolve it"),
]


@check
def nothing_is_left_over(source: Source) -> Iterator[Finding]:
    if source.path == THIS:
        return
    for pattern, reason in LEFTOVERS:
        for match in re.finditer(pattern, source.text, re.MULTILINE):
            yield source.line_of(match.start()), reason


# Absolute paths that are the same on every Linux machine, routes of HTTP, or plainly an example.
SYSTEM_PATHS: Final = frozenset(
    "bin dev etc inference lib lib64 no nonexistent path proc rose run sbin some sys tmp".split()
    + "usr var v1".split()
)
ABSOLUTE: Final = re.compile(
    r"""(?:^|(?<=[\s"'`=(]))/([A-Za-z][\w.-]*)(?:/[\w.-]+)+""", re.MULTILINE
)


@check
def no_machine_is_named(source: Source) -> Iterator[Finding]:
    if source.path == THIS:
        return
    for match in ABSOLUTE.finditer(source.text):
        if match[1] not in SYSTEM_PATHS:
            line = source.line_of(match.start())
            yield line, f"{match[0]} exists on one machine; make it relative"
    here = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    for path in here:
        if path in source.text:
            line = source.line_of(source.text.index(path))
            yield line, "a path of the machine this runs on; make it relative"


# Where packages come from is the user's to say, so links go to these places only.
LINKS: Final = frozenset(
    "github.com arxiv.org doi.org www.apache.org www.w3.org docs.python.org docs.nvidia.com "
    "keepachangelog.com semver.org localhost 127.0.0.1 example.com".split()
)
LINK: Final = re.compile(r"\b(?:https?|git|ssh)://(?:[^\s/@]*@)?([\w.-]+)")
INDEX: Final = re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host")


@check
def no_registry_is_named(source: Source) -> Iterator[Finding]:
    if source.path == THIS:
        return
    for match in LINK.finditer(source.text):
        if match[1] not in LINKS:
            yield source.line_of(match.start()), f"a link to {match[1]}; say it in words"
    for match in INDEX.finditer(source.text):
        yield source.line_of(match.start()), f"{match[0]} is the user's choice; leave it out"


VAGUE: Final = frozenset("manager helper helpers util utils misc data handler common tmp".split())


@check
def files_are_named_by_what_they_hold(source: Source) -> Iterator[Finding]:
    if source.is_python_of_a_package() or source.is_core() or source.path.parts[0] == "kernels":
        for word in VAGUE & set(re.split(r"[_.]", source.path.name)):
            yield 1, f"'{word}' says nothing; name the file by a noun of docs/glossary.md"


# --- what documents name --------------------------------------------------------------------------

FOLDERS: Final = ("rose", "csrc", "kernels", "tests", "bench", "docs", "requirements", ".ci")
CODE_SPAN: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOC_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
SUFFIX: Final = re.compile(r"^[\w.-]+\.(?:py|pyi|cpp|h|md|toml|txt|in)$")


def repository_path(span: str) -> str | None:
    """Return the path that a code span names, if it names one of this repository."""
    path = re.split(r"::|:\d|#", span)[0]
    if re.search(r"[\s<>{}$]|\.\.\.", path):
        return None
    if path.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
        return path
    return None


def is_there(path: str) -> bool:
    path = posixpath.normpath(path)
    return not path.startswith("..") and any(True for _ in ROOT.glob(path))


@check
def documents_name_what_exists(source: Source) -> Iterator[Finding]:
    if source.path.suffix != ".md":
        return
    for match in CODE_SPAN.finditer(source.text):
        line, span = source.line_of(match.start()), match[1].removeprefix("./")
        path = repository_path(span)
        if path is not None and not is_there(path):
            yield line, f"`{path}` does not exist; name what does"
        elif path is not None and "::" in span:
            test = span.split("::")[-1].split("[")[0]
            text = (ROOT / path).read_text()
            if not re.search(rf"\b(?:def|class|TEST\()\s*{re.escape(test)}\b", text):
                yield line, f"{path} has no {test}; name a test that is there"
    for match in DOC_LINK.finditer(source.text):
        target = match[1].split("#")[0]
        if not target or LINK.match(target) or target.startswith("mailto:"):
            continue
        if not is_there(str(source.path.parent / target)) and not is_there(target):
            yield source.line_of(match.start()), f"link to {target}, which does not exist"


# --- the tree is tidy -----------------------------------------------------------------------------

TEXT: Final = frozenset(
    ".py .pyi .cpp .h .cu .cuh .md .toml .txt .in .cfg .ini .yml .yaml .j2 .json .sh".split()
)
PLAIN: Final = frozenset({"Makefile", "run", ".gitignore", ".clang-format"})
SKIPPED: Final = frozenset({"build", "dist", "out", "__pycache__", "results"})


def project_files() -> list[PurePosixPath]:
    """Return the files of the project: what git knows or would add, or all but the built ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        names = [name for name in done.stdout.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):  # an unpacked sdist
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if not any(
                part in SKIPPED or part.endswith(".egg-info") or part.startswith((".venv", ".git"))
                for part in path.relative_to(ROOT).parts[:-1]
            )
        ]
    paths = sorted({PurePosixPath(name) for name in names})
    return [path for path in paths if (ROOT / path).is_file()]


def text_files() -> list[Source]:
    return [
        Source(path, (ROOT / path).read_text(encoding="utf-8"))
        for path in project_files()
        if (path.suffix in TEXT or path.name in PLAIN) and "results" not in path.parts
    ]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return text_files()


def test_the_project_has_files(sources: list[Source]) -> None:
    paths = {str(source.path) for source in sources}
    assert {"setup.py", "Makefile", "rose/__init__.py", str(THIS)} <= paths


@pytest.mark.parametrize("name", CHECKS)
def test_tree_is_tidy(name: str, sources: list[Source]) -> None:
    findings = dict.fromkeys(
        f"{source.path}:{line}: {what}" for source in sources for line, what in CHECKS[name](source)
    )
    assert not findings, "\n" + "\n".join(findings)


# Classes of one concept in two places: twins of the core and the kernels, or a public form of an
# inner class. Python and C++ may share a name: most pairs are two sides of one binding.
ONE_CONCEPT_TWICE: Final = frozenset(
    {"BitWriter", "BlockPlan", "Box", "Entry", "Request", "Sampling", "ServingStep", "Tokenizer"}
)
CPP_CLASS: Final = re.compile(r"^(?:enum )?(?:class|struct) (\w+)(?: final)?(?: :[^;{]*)? \{", re.M)


def test_no_class_name_has_two_meanings(sources: list[Source]) -> None:
    homes = defaultdict[tuple[bool, str], list[str]](list)
    for source in sources:
        is_python = source.is_python_of_a_package()
        if is_python:
            names = [node.name for node in source.tree().body if isinstance(node, ast.ClassDef)]
        elif source.path.suffix == ".h" and source.rooted().parts[0] in {"csrc", "kernels"}:
            names = CPP_CLASS.findall(source.text)
        else:
            continue
        for name in names:
            if not name.startswith("_"):
                homes[is_python, name].append(str(source.path))
    assert len(homes) > 500
    twice = {name: paths for (_, name), paths in homes.items() if len(paths) > 1}
    assert twice.keys() == ONE_CONCEPT_TWICE, twice


def test_only_small_files_are_kept() -> None:
    large = [path for path in project_files() if (ROOT / path).stat().st_size > 1 << 20]
    assert not large, f"files above 1 MiB do not belong in the repository: {large}"


# --- every check finds what is planted for it -----------------------------------------------------

# check, path, text, the line of the finding
PLANTED: Final = [
    ("imports_go_down", "rose/memory/pool.py", "import os\nimport rose.executor", 2),
    ("imports_go_down", "rose/memory/pool.py", "from rose.slo import model", 1),
    ("imports_go_down", "rose/memory/pool.py", "from rose import compute", 1),
    ("imports_go_down", "rose/memory/pool.py", "def f():\n    import rose.engines.torch", 2),
    ("imports_go_down", "rose/errors.py", "from rose.clock import Clock", 1),
    ("imports_go_down", "rose/errors.py", "from rose.memory import Pool", 1),
    ("imports_go_down", "rose/__init__.py", "from rose.executor import CoServing", 1),
    ("imports_go_down", "rose/executor/x.py", "from rose_lab.traces import azure", 1),
    (
        "imports_go_down",
        "rose/executor/x.py",
        "if TYPE_CHECKING:\n    from rose.api.device import Device",
        2,
    ),
    ("imports_go_down", "rose/cli/x.py", "def f():\n    import rose_lab", 2),
    ("imports_go_down", "rose/node/x.py", "from rose.cli import main", 1),
    ("imports_go_down", "rose/attic/x.py", "import os", 1),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/traces/x.py", "import rose_lab.demo.rl", 1),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/demo/x.py", "from rose.cli import runs", 1),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/demo/x.py", "import bench.rows", 1),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/traces/x.py", "import rose_lab.broker", 1),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/attic/x.py", "import os", 1),
    ("frameworks_stay_in_engines", "rose/executor/x.py", "import os\nimport torch.cuda", 2),
    ("frameworks_stay_in_engines", "rose/cli/x.py", "def f():\n    from torch import nn", 2),
    ("frameworks_stay_in_engines", "rose/clock.py", "import transformers", 1),
    ("frameworks_stay_in_engines", "rose/transfer/codec/tensor.py", "import torch", 1),
    (
        "frameworks_stay_in_engines",
        "rose/transfer/codec/tensor.py",
        "def f():\n    import triton",
        2,
    ),
    (
        "frameworks_stay_in_engines",
        "rose/transfer/codec/operations.py",
        "def f():\n    import torch",
        2,
    ),
    ("includes_go_down", "csrc/base/x.h", '#include "memory/pool.h"', 1),
    ("waits_have_deadlines", "bench/x.py", "import queue\nqueue.Queue().get()", 2),
    ("waits_have_deadlines", "examples/x.py", "def f(thread):\n    thread.join()", 2),
    ("waits_have_deadlines", "bench/x.py", "import subprocess\nsubprocess.run(['x'])", 2),
    ("includes_go_down", "csrc/memory/x.cpp", '#include <map>\n#include "slo/model.h"', 2),
    ("includes_go_down", "csrc/memory/x.cpp", '#include "bind/module.h"', 1),
    ("includes_go_down", "csrc/memory/x.cpp", '#include "pool.h"', 1),
    ("includes_go_down", "csrc/memory/x.cpp", '#include "../base/status.h"', 1),
    ("includes_go_down", "csrc/memory/x.cpp", "#include <pybind11/pybind11.h>", 1),
    ("includes_go_down", "csrc/memory/x.cpp", "  #  include <cuda.h>", 1),
    ("includes_go_down", "csrc/attic/x.cpp", "int x;", 1),
    ("includes_go_down", "csrc/scheduler/x.cpp", '#include "sim/world.h"', 1),
    ("includes_go_down", "bench/lab/csrc/sim/x.cpp", "#include <pybind11/pybind11.h>", 1),
    ("python_says_nothing_banned", "rose/slo/x.py", "x = 1\nassert x", 2),
    ("python_says_nothing_banned", "rose/slo/x.py", "print(1)", 1),
    ("python_says_nothing_banned", "bench/lab/rose_lab/sim/x.py", "print(1)", 1),
    ("python_says_nothing_banned", "rose/cli/x.py", "breakpoint()", 1),
    ("python_says_nothing_banned", "rose/slo/x.py", "exit(1)", 1),
    ("python_says_nothing_banned", "rose/slo/x.py", "import os\nos._exit(1)", 2),
    ("python_says_nothing_banned", "rose/slo/x.py", "import threading\nthreading.Thread(f)", 2),
    ("python_says_nothing_banned", "rose/slo/x.py", "from threading import Thread", 1),
    ("python_says_nothing_banned", "rose/slo/x.py", "try: f()\nexcept Exception: g()", 2),
    ("python_says_nothing_banned", "rose/slo/x.py", "try: f()\nexcept: g()", 2),
    (
        "python_says_nothing_banned",
        "rose/slo/x.py",
        "try: f()\nexcept (ValueError, BaseException): g()",
        2,
    ),
    ("environment_is_read_in_config", "rose/slo/x.py", "import os\nos.environ['X']", 2),
    ("environment_is_read_in_config", "rose/slo/x.py", "import os as o\no.getenv('X')", 2),
    ("environment_is_read_in_config", "rose/slo/x.py", "from os import environ", 1),
    ("time_comes_from_a_clock", "rose/slo/x.py", "import time\nt = time.monotonic()", 2),
    ("time_comes_from_a_clock", "rose/slo/x.py", "import time\nt = time.time", 2),
    ("time_comes_from_a_clock", "rose/engines/x.py", "from time import perf_counter_ns", 1),
    ("time_comes_from_a_clock", "rose/engines/x.py", "import time as t\nt.sleep(1)", 2),
    (
        "time_comes_from_a_clock",
        "rose/cli/x.py",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        2,
    ),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() {\n  std::abort();\n}", 2),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() {\n  if (x) exit(1);\n}", 2),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() { ::_exit(1); }", 1),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() {\n  assert(x);\n}", 2),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() { else assert(x); }", 1),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() { std::fprintf(e, 1); }", 1),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "void f() { std::cerr << 1; }", 1),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "thread.detach();", 1),
    ("cpp_says_nothing_banned", "csrc/slo/x.cpp", "std::random_device seed;", 1),
    ("cpp_says_nothing_banned", "csrc/slo/x.cpp", "// why\nthrow 1;", 2),
    ("cpp_says_nothing_banned", "csrc/bind/x.cpp", "\nconst py::gil_scoped_release unlocked;", 2),
    ("cpp_says_nothing_banned", "csrc/bind/x.cpp", "py::gil_scoped_acquire gil;", 1),
    (
        "cpp_says_nothing_banned",
        "csrc/bind/x.cpp",
        'py::class_<X>(m, "X", py::release_gil_before_calling_cpp_dtor())',
        1,
    ),
    ("cpp_says_nothing_banned", "csrc/bind/x.cpp", "Py_BEGIN_ALLOW_THREADS", 1),
    ("headers_are_guarded", "csrc/slo/x.h", "int f();", 1),
    ("nothing_is_left_over", "rose/x.py", "x = 1\n# TODO: later", 2),
    ("nothing_is_left_over", "csrc/base/x.h", "// TODO(somebody) later", 1),
    ("nothing_is_left_over", "docs/x.md", "FIXME", 1),
    ("nothing_is_left_over", "Makefile", "# XXX", 1),
    ("nothing_is_left_over", "README.md", "a\n<<<<<<< ours", 2),
    ("no_machine_is_named", "docs/x.md", "see `/home/somebody/rose`", 1),
    ("no_machine_is_named", "rose/config.py", '\nPATH = "/mnt/disk/traces"', 2),
    ("no_machine_is_named", "docs/x.md", f"see {ROOT}/README.md", 1),
    ("no_registry_is_named", "requirements/x.txt", "--extra-index-url here", 1),
    ("no_registry_is_named", "README.md", "\nhttps://packages.example.org/simple", 2),
    ("no_registry_is_named", "README.md", "git+https://me:token@host.example.org/x", 1),
    ("files_are_named_by_what_they_hold", "rose/memory/pool_utils.py", "", 1),
    ("files_are_named_by_what_they_hold", "csrc/base/helper.h", "#pragma once", 1),
    ("documents_name_what_exists", "docs/x.md", "see\n`rose/nowhere.py`", 2),
    ("documents_name_what_exists", "docs/x.md", "`tests/test_tidy.py::test_nothing`", 1),
    ("documents_name_what_exists", "docs/x.md", "`csrc/*/nowhere_*.h`", 1),
    ("documents_name_what_exists", "docs/x.md", "[here](nowhere.md)", 1),
]

CLEAN: Final = [
    ("imports_go_down", "rose/executor/x.py", "import os\nfrom rose.memory import Pool"),
    ("imports_go_down", "rose/executor/x.py", "from rose import __version__, memory, slo"),
    ("imports_go_down", "rose/memory/x.py", "from rose.memory.pool import Pool\nimport rose._core"),
    ("imports_go_down", "rose/events.py", "from rose.errors import check"),
    (
        "imports_go_down",
        "rose/__init__.py",
        "if TYPE_CHECKING:\n    from rose.api.device import Device",
    ),
    ("imports_go_down", "rose/cli/x.py", "def f():\n    from rose.engines import transformers"),
    ("imports_go_down", "rose/cli/x.py", "from rose.node.server import NodeServer"),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/cli/x.py", "from rose.cli import runs"),
    ("laboratory_imports_go_down", "bench/lab/rose_lab/sim/x.py", "from rose_lab import traces"),
    ("laboratory_imports_go_down", "bench/lab/suites/x.py", "import bench.rows"),
    ("frameworks_stay_in_engines", "rose/engines/x.py", "import torch"),
    ("frameworks_stay_in_engines", "rose/transfer/codec/tensor.py", "def f():\n    import torch"),
    ("frameworks_stay_in_engines", "rose/cli/x.py", "from rose.engines import torch"),
    ("waits_have_deadlines", "bench/x.py", "def f(event):\n    event.wait(60)"),
    ("waits_have_deadlines", "bench/x.py", "async def f(event):\n    await event.wait()"),
    ("waits_have_deadlines", "tests/x.py", "def f(thread):\n    thread.join()"),
    ("includes_go_down", "csrc/slo/x.cpp", '#include <map>\n#include "base/status.h"'),
    ("includes_go_down", "csrc/slo/x.cpp", '#include "slo/model.h"'),
    ("includes_go_down", "bench/lab/csrc/sim/x.cpp", '#include "scheduler/core.h"'),
    ("includes_go_down", "csrc/transfer/x.h", '#include "kernels/digest.h"'),
    ("includes_go_down", "csrc/bind/x.cpp", '#include <pybind11/stl.h>\n#include "slo/model.h"'),
    ("python_says_nothing_banned", "rose/cli/x.py", "print(1)"),
    ("python_says_nothing_banned", "rose/executor/x.py", "try: f()\nexcept Exception: g()"),
    ("python_says_nothing_banned", "rose/slo/x.py", "try: f()\nexcept ValueError: g()"),
    ("python_says_nothing_banned", "tests/x.py", "assert True"),
    ("environment_is_read_in_config", "rose/config.py", "import os\nos.environ['X']"),
    ("environment_is_read_in_config", "rose/slo/x.py", "import os\nos.cpu_count()"),
    ("time_comes_from_a_clock", "rose/clock.py", "import time\ntime.monotonic()"),
    ("time_comes_from_a_clock", "rose/slo/x.py", "clock.now_ns()"),
    ("cpp_says_nothing_banned", "csrc/base/x.h", "  Status abort(StepId step) noexcept;"),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "Status Gate::abort(StepId step) noexcept {"),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "f();\ngate.abort();\ngate->exit();"),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "static_assert(sizeof(int) == 4);"),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", '// never throw, abort()\nf("exit(1)");'),
    ("cpp_says_nothing_banned", "csrc/bind/x.cpp", "throw py::value_error();"),
    ("cpp_says_nothing_banned", "csrc/bind/x.cpp", "const GilReleased released;"),
    ("cpp_says_nothing_banned", "csrc/base/x.cpp", "std::snprintf(text, sizeof text, format);"),
    ("headers_are_guarded", "csrc/slo/x.h", "#pragma once"),
    ("nothing_is_left_over", "rose/x.py", "# TODO(#12): when there is a GPU"),
    ("no_machine_is_named", "docs/x.md", "`/proc/self/fd` and/or a/b/c, https://github.com/a/b"),
    ("no_registry_is_named", "docs/x.md", "https://arxiv.org/abs/2605.06534"),
    ("files_are_named_by_what_they_hold", "rose/memory/pool.py", ""),
    ("documents_name_what_exists", "docs/x.md", "`tests/test_tidy.py`, `tests/*.py`, `a/b`"),
    (
        "documents_name_what_exists",
        "docs/x.md",
        "`tests/test_tidy.py::test_tree_is_tidy` [a](../setup.py) [b](#c) `rose/<room>/x.py`",
    ),
]


@pytest.mark.parametrize(("name", "path", "text", "line"), PLANTED)
def test_planted_violation_is_found(name: str, path: str, text: str, line: int) -> None:
    findings = list(CHECKS[name](Source(PurePosixPath(path), text)))
    assert line in {found for found, _ in findings}


@pytest.mark.parametrize(("name", "path", "text"), CLEAN)
def test_clean_text_passes(name: str, path: str, text: str) -> None:
    assert not list(CHECKS[name](Source(PurePosixPath(path), text)))


def test_every_check_has_a_planted_violation() -> None:
    assert set(CHECKS) == {name for name, *_ in PLANTED} == {name for name, *_ in CLEAN}
