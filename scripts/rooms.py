"""Print how the rooms of tuner/ hang together, and check that the house is kept.

    python scripts/rooms.py [--check] [--edges]

A room is a package on the top level of tuner/, with all that is in it. Rooms stand in the order of
imports: each imports only what stands above it in ROOMS. --check prints what breaks that, or a
limit of size, and names of two classes, and exits with 1; tests/test_architecture.py calls it.
--edges prints which rooms each room imports, and from how many of its modules.
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "tuner"

ROOMS = (
    *("errors", "system", "trace", "capture", "engines", "traffic", "replay", "twin", "profile"),
    *("runs", "rollout", "live", "commands", "cli"),
)

UPWARDS = {("engines.live_scheduler", "live.control.thread")}
"""Deployed servers name this scheduler in their command line, so it stays where it is."""

MOST_ENTRIES = 15
"""In one folder, ``__init__.py`` and ``py.typed`` not counted."""

TABLES = ("trace/formats", "rollout/targets/kinds", "commands")
"""Folders that are tables: an entry for each thing of one kind, however many there are."""

MOST_LINES = 500
MOST_PAIRS = 60


@dataclass(frozen=True)
class House:
    paths: Mapping[str, Path]
    """Module, without ``tuner.``, → its file. A package is its ``__init__``."""

    imports: Mapping[str, frozenset[str]]
    """Module → the modules that it imports, anywhere in it."""

    @property
    def edges(self) -> Iterator[tuple[str, str]]:
        return ((one, other) for one, others in self.imports.items() for other in others)

    @property
    def pairs(self) -> Counter[tuple[str, str]]:
        """(Importing, imported) room, with the number of pairs of their modules that do."""
        return self._pairs(room_of)

    @property
    def pairs_of_packages(self) -> Counter[tuple[str, str]]:
        """The same where a package inside a room is a node of its own, apart from its room."""
        return self._pairs(self._package_of)

    def _pairs(self, node_of: Callable[[str], str]) -> Counter[tuple[str, str]]:
        found = ((node_of(one), node_of(other)) for one, other in self.edges)
        return Counter((one, other) for one, other in found if one != other)

    def _package_of(self, module: str) -> str:
        if self.paths[module].name == "__init__.py":
            return module
        return module.rpartition(".")[0] or module


def read_house(package: Path = PACKAGE) -> House:
    paths = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
        if path != package / "__init__.py"
    }
    return House(
        paths, {name: _imports(path) & paths.keys() - {name} for name, path in paths.items()}
    )


def _imports(path: Path) -> frozenset[str]:
    """Return every name that a file imports from tuner, be it a module or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members | {node.module}
    return frozenset(name.removeprefix("tuner.") for name in found if name.startswith("tuner."))


def room_of(module: str) -> str:
    return module.partition(".")[0]


def faults(house: House) -> list[str]:
    """Return what is wrong with the house, a line each; nothing where it is kept."""
    return [
        *_unknown(house),
        *_upwards(house),
        *_circles(house.imports),
        *_crowded(house),
        *_long(house),
        *_tangled(house),
        *_ambiguous(house),
    ]


def _unknown(house: House) -> Iterator[str]:
    for room in sorted({room_of(module) for module in house.paths} - set(ROOMS)):
        yield f"{room}: is no room; a room is in ROOMS of scripts/rooms.py, with its place"


def _upwards(house: House) -> Iterator[str]:
    order = {room: place for place, room in enumerate(ROOMS)}
    for one, other in sorted(house.edges):
        if (
            order.get(room_of(one), 0) < order.get(room_of(other), 0)
            and (one, other) not in UPWARDS
        ):
            yield f"{one} imports {other}, which is of a higher room"


def _circles(imports: Mapping[str, frozenset[str]]) -> Iterator[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def _crowded(house: House) -> Iterator[str]:
    for folder, count in sorted(entries(house).items()):
        if count > MOST_ENTRIES and folder not in TABLES:
            yield f"{folder}: {count} entries, {MOST_ENTRIES} at most"


def _long(house: House) -> Iterator[str]:
    for path in house.paths.values():
        if (lines := lines_of(path)) > MOST_LINES:
            yield f"{path.relative_to(PACKAGE.parent)}: {lines} lines, {MOST_LINES} at most"


def _tangled(house: House) -> Iterator[str]:
    if (pairs := len(house.pairs)) > MOST_PAIRS:
        yield f"{pairs} pairs of rooms know each other, {MOST_PAIRS} at most"


def _ambiguous(house: House) -> Iterator[str]:
    """Yield the public classes that share their name: a name means one thing in the whole tree."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module, path in house.paths.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    for name, modules in sorted(homes.items()):
        if len(modules) > 1:
            yield f"{name}: a class of this name is in {' and in '.join(modules)}"


def entries(house: House) -> Counter[str]:
    """Return how many files and folders each folder has."""
    package = next(iter(house.paths.values()))
    while package.name != "tuner":
        package = package.parent
    paths = house.paths.values()
    found = Counter(path.parent for path in paths if path.name != "__init__.py")
    found.update(path.parent.parent for path in paths if path.name == "__init__.py")
    return Counter({str(path.relative_to(package)): count for path, count in found.items()})


def floors(imports: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return the floor of each node: one above the highest that it imports."""
    found: dict[str, int] = {}
    for node in TopologicalSorter(imports).static_order():
        found[node] = 1 + max((found[below] for below in imports.get(node, ())), default=0)
    return found


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def render(house: House, *, edges: bool) -> str:
    lines, modules = Counter[str](), Counter[str]()
    for module, path in house.paths.items():
        lines[room_of(module)] += lines_of(path)
        modules[room_of(module)] += 1
    pairs = house.pairs
    upwards = {(room_of(one), room_of(other)) for one, other in UPWARDS}
    below = {
        room: frozenset(b for a, b in pairs if a == room and (a, b) not in upwards)
        for room in lines
    }
    floor = floors(below)
    rows = [f"{'room':10}{'lines':>8}{'modules':>9}{'floor':>7}  imports"]
    for room in sorted(lines, key=lambda room: ROOMS.index(room) if room in ROOMS else -1):
        named = [
            f"{other} {pairs[room, other]}" if edges else other
            for other in sorted(below[room], key=ROOMS.index)
        ]
        rows.append(
            f"{room:10}{lines[room]:8,}{modules[room]:9}{floor[room]:7}  {', '.join(named) or '-'}"
        )
    rows.append(
        f"{lines.total():,} lines in {len(lines)} rooms, {entries(house)['.']} entries on top; "
        f"{len(pairs)} pairs of rooms ({len(house.pairs_of_packages)} of all packages), "
        f"{max(floor.values())} floors of rooms, "
        f"{max(floors(house.imports).values())} of modules"
    )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--edges", action="store_true")
    options = parser.parse_args()
    house = read_house()
    wrong = faults(house)
    for fault in wrong:
        print(fault, file=sys.stderr)
    if not list(_circles(house.imports)):
        print(render(house, edges=options.edges))
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
