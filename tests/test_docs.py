"""Docs that stay true: links resolve, commands and options exist, the tutorial runs."""

import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from tests.support import in_process
from tests.support.places import ROOT
from tuner.commands.root import app

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "[pte]*/**/README.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)
TARGET = re.compile(r"^([a-z]+):", flags=re.MULTILINE)

SIMULATED = ["--engine", "sim", "--world", str(ROOT / "examples" / "worlds" / "article.yaml")]
RUN = [["tuner", name] for name in ("sweep", "show", "plan", "report", "export")]
RUN += [["tuner", "trace", name] for name in ("show", "import", "cut")]
"""What runs with nothing but a trace, a profile and a run."""

FILE = r"^runs/|\.(csv|jsonl|yaml)$|^http"

MEASURED = ROOT / "profiles" / "translation-tiny-cpu.yaml"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = HEADING.findall(FENCE.sub("", page))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(FENCE.sub("", text)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@cache
def commands() -> dict[str, set[str]]:
    """Return every command by its words, with the options it takes."""
    found: dict[str, set[str]] = {}
    todo = [("tuner", typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        inner = getattr(command, "commands", {})
        todo += [(f"{words} {name}", child) for name, child in inner.items()]
        options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        found[words] = {"--help", *options}
    return found


def typed(page: Path) -> Iterator[list[str]]:
    """Yield the commands that a page tells its reader to type, as words."""
    for kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        lines = body.replace("\\\n", " ").splitlines()
        if kind == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif kind != "sh":
            continue
        yield from filter(None, (shlex.split(line, comments=True) for line in lines))


def command_of(line: list[str]) -> str:
    return max((name for name in commands() if line[: len(name.split())] == name.split()), key=len)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    for line in typed(page):
        if line[0] == "make":
            assert {word for word in line[1:] if "=" not in word} <= targets, line
        if line[0] == "tuner":
            options = {word.partition("=")[0] for word in line if re.match("--?[a-z]", word)}
            assert options <= commands()[command_of(line)], line


@pytest.mark.usefixtures("by_few_draws")
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """On the simulator; what is applied is the profile of a real engine."""
    folder = Path(shutil.copytree(ROOT / "examples" / "walk", tmp_path / "walk"))
    lines = [line[1:] for line in typed(ROOT / "docs" / "tutorial.md")]
    assert {line[0] for line in lines} >= {"trace", "sweep", "show", "apply", "verify", "plan"}
    for words in lines:
        simulated = SIMULATED if words[0] in {"sweep", "verify"} else []
        if words[0] == "apply" and "--rollback" not in words:
            shutil.move(folder / "profile.yaml", folder / "simulated.yaml")
            shutil.copy(MEASURED, folder / "profile.yaml")
        done = in_process.tuner(folder, *words, *simulated)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        if (folder / "simulated.yaml").exists():
            shutil.move(folder / "simulated.yaml", folder / "profile.yaml")
    assert "max-num-seqs: 8 " in (folder / "serve.yaml").read_text(encoding="utf-8")
    assert "--max-num-seqs 256" in (folder / "compose.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, by_few_draws: None) -> Path:  # noqa: ARG001
    """A folder with the files that the pages name, after a sweep of them."""
    folder = tmp_path_factory.mktemp("docs") / "walk"
    shutil.copytree(ROOT / "examples" / "walk", folder)
    for name in ("examples", "traces"):
        (folder / name).symlink_to(ROOT / name)
    sweep = ["sweep", "--trace", "prod.jsonl", "--run-dir", "runs/prod-1", *SIMULATED]
    for words in (["trace", "import", "requests.csv", "-o", "prod.jsonl"], sweep):
        assert in_process.tuner(folder, *words).returncode == 0
    return folder


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_does_with_these_files_runs(page: Path, swept: Path) -> None:
    """A sweep as a dry run. A requirement may be more than the machine keeps."""
    for line in typed(page):
        pairs = pairwise(line)
        read = [one for before, one in pairs if before != "-o" and re.search(FILE, one)]
        is_here = all((swept / one).exists() for one in read)
        if not (line[:2] in RUN or line[:3] in RUN) or not is_here or "--ray" in line:
            continue
        more = ["--force"] if "--force" in commands()[command_of(line)] else []
        if line[1] == "sweep" and "--rescore" not in line:
            more = ["--dry-run", *([] if "--world" in line else SIMULATED)]
        done = in_process.tuner(swept, *line[1:], *more)
        assert done.returncode in {0, 6}, f"{line}\n{done.stdout}\n{done.stderr}"
