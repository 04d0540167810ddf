"""Files beside the one that is edited: read where it names them, warned of where they decide."""

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import TargetError
from tuner.rollout.server import Near
from tuner.system import files, yaml_strict

_MOST = 64
"""Patches or drop-ins that are looked at."""

_SETS_ARGUMENTS = re.compile(
    r"(?m)^[ \t]*(?:- )?(?:args|command|entrypoint)[ \t]*:|/(?:args|command)\b"
)
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
    return list(dict.fromkeys(_PATCH.findall(listed)))[:_MOST]


def overruled(path: Path, kind: str, name: str) -> Iterator[str]:
    """Yield a warning for each file beside this one that sets the same server's arguments again."""
    read = near(path.parent)
    sets, others = _SETS_ARGUMENTS, list[str]()
    if kind == "compose":
        others = [f"{path.stem}.override{suffix}" for suffix in (".yaml", ".yml")]
        sets = re.compile(
            rf"^[ \t]+{re.escape(name)}:[\s\S]*?\b(?:command|entrypoint):", re.MULTILINE
        )
    elif kind == "systemd":
        drop_ins = sorted(path.parent.glob(f"{path.name}.d/*.conf"))[:_MOST]
        others = [str(each.relative_to(path.parent)) for each in drop_ins]
        sets = re.compile(r"^ExecStart=", re.MULTILINE)
    elif kind in {"kubernetes", "kustomize"}:
        others = patches(read("kustomization.yaml") or read("kustomization.yml") or "")
    for other in others:
        text = read(other) or ""
        if other != path.name and (found := sets.search(text)):
            line = text.count("\n", 0, found.end()) + 1
            yield f"{other}:{line} sets the server's arguments again and decides after {path.name}"
