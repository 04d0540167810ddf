"""How the rooms depend on each other, and what a start may load."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import tuner
from tests.support.places import ROOT

PACKAGE = Path(tuner.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

ROOMS = (
    *("errors", "system", "trace", "capture", "engines", "traffic", "replay", "twin", "profile"),
    *("runs", "rollout", "live", "views", "commands", "cli"),
)
"""In the order of imports: a room imports only those before it."""

UPWARDS = {
    ("tuner.engines.live_scheduler", "tuner.live.control"),
}
"""Servers name this scheduler in their command line, so it stays where it is."""

HEAVY = {"numba", "numpy", "optuna", "pyarrow", "pydantic", "ray", "scipy", "torch"}
HEAVY |= {"vllm"}

IMPORT_NAMES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


@cache
def imports(module: str) -> frozenset[str]:
    """Return everything that a module imports, anywhere in it."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            result |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(result)


def room(module: str) -> str:
    return module.split(".")[1]


def test_a_room_imports_only_rooms_before_it() -> None:
    upwards = {
        (module, imported)
        for module in MODULES.keys() - {"tuner"}
        for imported in imports(module) & MODULES.keys() - {"tuner"}
        if ROOMS.index(room(imported)) > ROOMS.index(room(module))
    }
    assert upwards - UPWARDS == set()


def loaded_by(code: str) -> list[str]:
    words = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_the_command_line_starts_without_what_is_slow_to_import() -> None:
    assert HEAVY & set(loaded_by("import tuner.commands.root")) == set()


def test_the_entry_loads_nothing_that_an_early_interrupt_could_hit() -> None:
    loaded = loaded_by("import tuner.cli")
    assert not [name for name in loaded if re.match(r"typer|click|rich|tuner\.commands", name)]


@pytest.mark.parametrize("extra", [True, False], ids=["imported", "declared"])
def test_what_is_imported_is_declared_and_the_reverse(extra: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    base = {name_of(each) for each in project["dependencies"]}
    more = {name_of(item) for name, each in extras.items() if name != "dev" for item in each}
    imported = {name.split(".")[0] for module in MODULES for name in imports(module)}
    if extra:
        of_vllm = {"huggingface_hub"}
        assert imported - base - more - of_vllm - {"tuner"} - sys.stdlib_module_names == set()
    else:
        assert base - imported == {"llvmlite"}  # pinned for numba


def name_of(requirement: str) -> str:
    name = re.split(r"[<>=\[ ]", requirement)[0]
    return IMPORT_NAMES.get(name, name.replace("-", "_"))
