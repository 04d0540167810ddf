"""The house, as a test: rooms keep their order, what decides is pure, dependencies have a home."""

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
PATHS = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}

PURE_AT_LEAST = {
    *("replay.measure", "replay.records", "twin.knee", "twin.verdict_text", "twin.uncertainty"),
    *("traffic.slo", "traffic.window", "traffic.workload", "traffic.prompts", "runs.outcome"),
    *("runs.result", "engines.seam", "rollout.targets.seam"),
}
"""Those that decide. Any other module joins them by calling itself pure."""

NOT_ASKED = frozenset({"system.jit", "profile.profile", "trace.trace"})
"""What a pure module may import whatever it reaches: a compiler with its cache, and types that live
beside what reads and writes them."""

HOMES = {
    "vllm": {"capture.stat_logger", "engines.live_scheduler", "engines.vllm", "engines.workers"},
    "httpx": {"system.http_client"},
    "torch": set[str](),
    "optuna": {"runs.refine"},
    "prometheus_client": {"capture.spool", "live.exporter", "live.prometheus"},
    "psutil": {"engines.devices"},
    "pynvml": {"engines.gpus"},
    "ray": {"runs.cluster.session"},
    "rich": {"commands"},
    "scipy": {"twin"},
    "typer": {"commands"},
}
"""Dependency → the modules, or folders of modules, that may import it."""

WORLD = {
    *("asyncio", "os", "random", "secrets", "selectors", "shutil", "signal", "socket"),
    *("subprocess", "tempfile", "threading", "time"),
    *(HOMES.keys() - {"prometheus_client", "scipy"}),  # a part of which only parses
}

UNPICKLES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}

AN_ERROR = "pickle.UnpicklingError"

RUNS_WHAT_IT_READS = {
    *("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("asyncio.create_subprocess_shell", "subprocess.getoutput", "subprocess.getstatusoutput"),
}

CATCH_ALL = {
    *("capture.engine_tap", "capture.spool", "cli", "system.contain_errors"),
    *(
        "engines.vllm.config",
        "engines.vllm.engine",
        "runs.refine.study.storage",
        "runs.refine.study.storage_timeout",
    ),
}
"""vLLM refuses and fails with whatever its depths raise, as do the storages of studies, and what
records inside a server may not fail it; a signal may make anything fail. Nothing else is caught
unnamed."""

HEAVY = {
    "msgspec",
    "numba",
    "numpy",
    "optuna",
    "pydantic",
    "ray",
    "scipy",
    "torch",
    "vllm",
}
"""What ``tuner --help`` has no time for."""

SLOW = HEAVY | {"httpx", "psutil", "pyarrow", "pynvml"}
"""What takes a command a tenth of its start or more: it is loaded by those that use it, when they
do."""

IMPORT_NAMES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """Return all that a module imports, anywhere in it: ``vllm``, ``tuner.trace.trace``."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members if node.module == "tuner" else {node.module, *members}
    ours = {name for name in found if name.removeprefix("tuner.") in PATHS}
    theirs = {name.split(".")[0] for name in found} - {"tuner"}
    return frozenset(ours | theirs)


@cache
def inner(module: str) -> frozenset[str]:
    ours = (name for name in imports(module) if name.startswith("tuner."))
    return frozenset(name.removeprefix("tuner.") for name in ours)


def reaches(module: str, *, but_not_through: frozenset[str] = frozenset()) -> set[str]:
    """Return what a module imports, itself or through the rest of tuner."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = {module}
    while todo:
        here = todo.pop()
        seen.add(here)
        found |= imports(here)
        todo |= inner(here) - seen - but_not_through
    return found


def is_pure(module: str) -> bool:
    """Whether a module calls itself pure; of a package only its paragraph does."""
    says = ast.get_docstring(tree(module)) or ""
    named = re.search(r"\bPure\b|\bTypes only\.", says) is not None
    return module in PURE_AT_LEAST or (named and PATHS[module].name != "__init__.py")


def at_home(dependency: str, module: str) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in HOMES[dependency])


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_house_is_kept() -> None:
    script = ROOT / "scripts" / "rooms.py"
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_room_says_what_comes_in_what_goes_out_and_what_it_may_touch() -> None:
    for room in re.findall(r"^    (\w+) +\S", tuner.__doc__ or "", flags=re.MULTILINE):
        says = ast.get_docstring(tree(room)) or ""
        assert says.count("\n\n") == 1, room
        assert re.search(r"\b[Ii]n come", says), room
        assert "out go" in says.replace("\n", " "), room


def test_the_folders_of_tests_are_those_of_the_rooms() -> None:
    tests = {path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/**/test_*.py")}
    assert {str(folder) for folder in tests if not (PACKAGE / folder).is_dir()} == set()


def test_the_walk_names_every_room_once_in_the_order_of_imports() -> None:
    listed = re.findall(r"^    (\w+) +\S", tuner.__doc__ or "", flags=re.MULTILINE)
    rooms = (ROOT / "scripts" / "rooms.py").read_text(encoding="utf-8")
    order = re.findall(r'"(\w+)"', rooms[rooms.index("ROOMS = (") : rooms.index("UPWARDS")])
    assert listed == [room for room in order if (PACKAGE / room).is_dir()]


def test_the_map_of_what_moved_leads_to_what_is_there() -> None:
    page = (ROOT / "docs" / "decisions" / "0006-rooms.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| .*`.* \| ([^|]+) \|$", page, flags=re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert len(cells) > 300
    assert {one for one in named if one not in PATHS and not (PACKAGE / one).is_dir()} == set()


def test_what_decides_does_not_reach_the_world() -> None:
    pure = PURE_AT_LEAST | set(filter(is_pure, PATHS))
    reached = {one: reaches(one, but_not_through=NOT_ASKED) & WORLD for one in pure}
    assert {one: names for one, names in reached.items() if names} == {}


def test_each_big_dependency_has_one_home() -> None:
    strays = {
        module: names
        for module in PATHS
        if (names := {one for one in imports(module) & HOMES.keys() if not at_home(one, module)})
    }
    assert strays == {}


def test_errors_are_caught_by_name() -> None:
    unnamed = [
        f"{module}:{node.lineno}"
        for module in PATHS.keys() - CATCH_ALL
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
    ]
    assert unnamed == []


def runs(code: ast.Module) -> set[str]:
    """Return what in a module runs what it reads, by whole names, whatever it is imported as."""
    names: dict[str, str] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            for one in node.names:
                whole = one.name if one.asname else one.name.partition(".")[0]
                names[one.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    used = {name for name in names.values() if "." in name}
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{names.get(node.value.id)}.{node.attr}")
    found = {name for name in used if name.partition(".")[0] in UNPICKLES} - {AN_ERROR}
    for call in (node for node in ast.walk(code) if isinstance(node, ast.Call)):
        head, dot, rest = ast.unparse(call.func).partition(".")
        found |= {
            f"{names.get(head, head)}{dot}{rest}".removeprefix("builtins.")
        } & RUNS_WHAT_IT_READS
        found |= {
            f"{word.arg}={ast.unparse(word.value)}"
            for word in call.keywords
            if word.arg in {"shell", "allow_pickle"} and ast.unparse(word.value) != "False"
        }
    return found


@pytest.mark.attack
def test_nothing_that_is_read_is_run() -> None:
    found = {module: runs(tree(module)) for module in PATHS}
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.attack
@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle; pickle.UnpicklingError", set()),
        ("import pickle as p; p.loads(x)", {"pickle.loads"}),
        ("import dill; read = dill.load", {"dill.load"}),
        ("from pickle import loads", {"pickle.loads"}),
        ("from marshal import loads as read", {"marshal.loads"}),
        ("from os import system as say; say(x)", {"os.system"}),
        ("import yaml as y; y.load(x)", {"yaml.load"}),
        ("from yaml import unsafe_load; unsafe_load(x)", {"yaml.unsafe_load"}),
        ("import builtins; builtins.eval(x)", {"eval"}),
        ("from subprocess import getoutput; getoutput(x)", {"subprocess.getoutput"}),
        ("run(x, shell=flag)", {"shell=flag"}),
        ("np.load(x, allow_pickle=not safe)", {"allow_pickle=not safe"}),
        ("np.load(x, allow_pickle=False); run(x, shell=False); self.eval(x)", set()),
    ],
)
def test_what_runs_it_is_found_whatever_it_is_called(code: str, found: set[str]) -> None:
    assert runs(ast.parse(code)) == found


def test_the_command_line_starts_without_what_is_slow_to_import() -> None:
    loaded = run_python(
        "import sys, tuner.commands.root; print(*{name.split('.')[0] for name in sys.modules})"
    )
    assert HEAVY & set(loaded.split()) == set()


def test_a_command_loads_what_is_slow_to_import_only_where_it_needs_that() -> None:
    stages = [
        ("trace capture", {"msgspec", "numpy"}),
        ("show diff apply export plan watch", {"pydantic"}),
        ("doctor verify sweep compare report", {"psutil", "pynvml"}),
        ("refine", {"optuna"}),
    ]
    told = run_python(
        "import importlib, sys\n"
        f"for commands in {[commands for commands, _ in stages]}:\n"
        "    for command in commands.split():\n"
        "        importlib.import_module(f'tuner.commands.{command}.run')\n"
        "    print(*{name.split('.')[0] for name in sys.modules})"
    )
    needed: set[str] = set()
    for (commands, more), loaded in zip(stages, told.splitlines(), strict=True):
        needed |= more
        assert SLOW & set(loaded.split()) == needed, commands


def test_a_trace_that_is_not_there_is_refused_before_its_formats_are_loaded() -> None:
    loaded = run_python(
        "import contextlib, pathlib, sys\n"
        "from tuner.errors import TraceError\n"
        "from tuner.trace import stream, trace\n"
        "for read in (trace.load, lambda path: stream.Input(path).open()):\n"
        "    with contextlib.suppress(TraceError):\n"
        "        read(pathlib.Path('none.jsonl'))\n"
        "print(*sys.modules)"
    )
    assert {"tuner.trace.formats.registry", "tuner.trace.tables"} & set(loaded.split()) == set()


def test_what_is_compiled_imports_little_for_every_start_reads_all_of_that() -> None:
    compilers = [module for module in PATHS if "tuner.system.jit" in imports(module)]
    reached = {
        module: len([name for name in reaches(module) if name.startswith("tuner.")])
        for module in compilers
    }
    assert compilers
    assert {module: count for module, count in reached.items() if count > 10} == {}


def test_the_entry_loads_nothing_that_an_early_interrupt_could_hit() -> None:
    loaded = run_python("import sys, tuner.cli; print(*sys.modules)").split()
    assert [name for name in loaded if re.match(r"tuner|typer|click|rich", name)] == [
        "tuner",
        "tuner.system",
        "tuner.system.printable",
        "tuner.system.interruption",
        "tuner.cli",
    ]


@pytest.mark.parametrize("command", ["apply", "diff", "trace"])
def test_commands_that_serve_nothing_need_no_engine(command: str) -> None:
    assert reaches(f"commands.{command}.options") & {"torch", "vllm"} == set()


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = {
        IMPORT_NAMES.get(name, name.replace("-", "_"))
        for requirement in [
            *project["dependencies"],
            *extras["vllm"],
            *extras["ray"],
        ]
        for name in [re.split(r"[<>=\[ ]", requirement)[0]]
    }
    imported = {name for module in PATHS for name in imports(module)}
    theirs = {name for name in imported if not name.startswith("tuner.")}
    assert theirs - declared - sys.stdlib_module_names == set()
