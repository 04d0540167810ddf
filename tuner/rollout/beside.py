"""Files beside the one that is edited: read where it names them, warned of where they decide."""

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import TargetError
from tuner.rollout.known import FACTS
from tuner.rollout.server import Near
from tuner.system import files, yaml_strict

_PATCH = re.compile(r"(?m)(?:\bpath:|^[ \t]*-) *[\"']?([\w./-]+\.ya?ml)\b")


def near(folder: Path) -> Near:
    """Return a reader of the files in a folder: None for what is not there or cannot be read."""

    def text(name: str) -> str | None:
        path = folder / name
        try:
            if not path.exists() or not files.resolve(path).is_file():
                return None
            return yaml_strict.read(path, error=TargetError, missing="")
        except (TargetError, OSError):
            return None

    return text


def patches(kustomization: str) -> list[str]:
    """Return the names of the files that a kustomization patches with."""
    _, _, listed = kustomization.partition("patches")
    return list(dict.fromkeys(_PATCH.findall(listed)))


def overruled(path: Path, kind: str, server: str) -> Iterator[str]:
    """Yield a warning for each file beside this one that sets the same server's arguments again."""
    read, (pattern, sets) = near(path.parent), FACTS["overrules"].get(kind, ("", "$^"))
    others = patches(read("kustomization.yaml") or read("kustomization.yml") or "")
    if pattern:
        names = path.parent.glob(pattern.format(stem=path.stem, name=path.name))
        others = [str(each.relative_to(path.parent)) for each in sorted(names)]
    sets = sets.replace("{server}", re.escape(server))
    for name in others:
        text = read(name) or ""
        if name != path.name and (again := re.search(sets, text, re.MULTILINE)):
            line = text.count("\n", 0, again.end()) + 1
            yield f"{name}:{line} sets the server's arguments again and decides after {path.name}"
