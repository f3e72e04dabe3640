"""Sources of a room can be one translation unit: what one of them names, no other does.

A constant that is there twice stops the compiler. A function does not where the types differ: then
the sources of a unit overload each other, and a call may find the function of another source.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.building.project import ROOT, SETUP

UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace\n", re.DOTALL | re.MULTILINE)
ATTRIBUTE = re.compile(r"(?:\[\[.*?\]\]|__attribute__\(\(.*?\)+) *")
# A name at the border of a line: what is deeper belongs to a class or a function.
FUNCTION = re.compile(r"^(?![\s#/*}])[^()=\n]*?(?<!:)\b(\w+)\(", re.MULTILINE)


def functions(text: str) -> set[str]:
    return set(FUNCTION.findall(ATTRIBUTE.sub("", text)))


def shared_names(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each function of an unnamed namespace whose name is there twice.

    Args:
        texts: the sources and headers of a room, by name.
    """
    users: dict[str, set[str]] = defaultdict(set)
    for name, text in texts.items():
        parts = UNNAMED.findall(text) if name.endswith(".cpp") else [text]
        for function in set().union(*map(functions, parts)):
            users[function].add(name)
    for function, names in sorted(users.items()):
        if len(names) > 1 and any(name.endswith(".cpp") for name in names):
            yield f"{function} is in {' and '.join(sorted(names))}"


def test_a_name_in_an_unnamed_namespace_is_there_once_in_its_room() -> None:
    rooms: dict[Path, dict[str, str]] = defaultdict(dict)
    for path in (*ROOT.glob("csrc/*/*"), *(ROOT / SETUP.LABORATORY).glob("csrc/*/*")):
        if path.suffix in {".cpp", ".h"}:
            rooms[path.parent][path.name] = path.read_text()
    assert len(rooms) > 5
    assert [line for texts in rooms.values() for line in shared_names(texts)] == []


def test_planted_overload_is_found() -> None:
    source = "namespace {{\n{} load({} at) noexcept {{\n  return other(at);\n}}\n}}  // namespace\n"
    texts = {
        "a.cpp": source.format("int", "const int*"),
        "b.cpp": source.format('__attribute__((target("avx2"))) inline long', "const void*"),
        "c.cpp": "int Some::load() {\n  return load(1);\n}\n",
        "d.h": "int other(int at);\nclass Some {\n  int load();\n};\n",
    }
    assert list(shared_names(texts)) == ["load is in a.cpp and b.cpp"]
    texts["d.h"] += "int load(char at);\n"
    assert list(shared_names(texts)) == ["load is in a.cpp and b.cpp and d.h"]
