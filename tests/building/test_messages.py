"""The modules of messages that are kept are what protoc makes of their sources."""

import sys
from pathlib import Path

import pytest

from tests.building.project import ROOT, run

PROTOS = sorted(path.relative_to(ROOT) for path in ROOT.glob("rose/**/*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=str)
def test_kept_modules_are_current(proto: Path, tmp_path: Path) -> None:
    into = [f"-I{ROOT}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    done = run(sys.executable, "-m", "grpc_tools.protoc", *into, proto, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for kind in (".py", ".pyi"):
        made = proto.with_name(f"{proto.stem}_pb2{kind}")
        assert (ROOT / made).read_text() == (tmp_path / made).read_text(), "run make messages"
