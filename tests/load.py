"""Programs of this repository that no package holds, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
    """Return a Python file as a module; it runs as it does when it is imported."""
    spec = importlib.util.spec_from_file_location(f"rose_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
