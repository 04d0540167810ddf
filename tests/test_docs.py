"""Docs that stay true: links resolve, commands and options exist, and what a page says runs."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from tests.support import in_process
from tests.support.places import ROOT
from tuner.commands.root import app
from tuner.profile.profile import load

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "[pte]*/**/README.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)
TARGET = re.compile(r"^([a-z]+):", flags=re.MULTILINE)

SIMULATED = ["--world", str(ROOT / "examples" / "worlds" / "article.yaml")]
ON_AN_ENGINE = {"sweep", "refine", "verify", "compare"}
"""Commands that start one: here a simulated machine, and the profile of that machine."""

WRITE = {"apply"}
"""Commands that want the profile of a real engine."""

MEASURED = ROOT / "profiles" / "chat-small-cpu.yaml"

NOT_RUN = {
    r"^(make|pip) ": "installs packages",
    r"^python scripts/": "takes hours",
    r"^export |=\S+ vllm |^vllm ": "starts a server of vLLM",
    r"--ray": "needs a cluster",
    r"--url|--live|tuner live|http://": "needs a running server",
    r"/var/lib/": "reads what a server recorded",
    r"tuner doctor": "measures the machine",
}
"""Commands that no test of a page runs → why. Other tests run them, on real engines and servers."""


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
    options: dict[str, set[str]] = {}
    todo = [("tuner", typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        inner = getattr(command, "commands", {})
        todo += [(f"{words} {name}", child) for name, child in inner.items()]
        names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        options[words] = {"--help", *names}
    return options


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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, by_few_draws: None) -> Path:  # noqa: ARG001
    """A folder with every file that a page names."""
    folder = tmp_path_factory.mktemp("docs") / "walk"
    shutil.copytree(ROOT / "examples" / "walk", folder)
    for name in ("examples", "traces"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(MEASURED, folder / "profile.yaml")
    shutil.copy(MEASURED, folder / "other.yaml")
    rows = [f"{second},40,x,x,x,x,60" for second in range(20)]
    (folder / "odd.csv").write_text("\n".join(["ts,req.p,c,d,e,f,g", *rows]))
    steps = [f'{{"time_sec": {60 * step}, "concurrency": {4 + step}}}' for step in range(3)]
    (folder / "schedule.jsonl").write_text("\n".join(steps))
    run_in(folder, ["trace", "import", "requests.csv", "-o", "prod.jsonl"])
    sweep = ["sweep", "--trace", "prod.jsonl", "--run-dir", "runs/prod-1", "-o", "simulated.yaml"]
    run_in(folder, [*sweep, *SIMULATED])
    return folder


def run_in(folder: Path, words: list[str]) -> None:
    """Run a command, which a requirement that is too much for the machine may end with 6."""
    done = in_process.tuner(folder, *words)
    assert done.returncode in {0, 6}, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in PAGES if any(typed(page))], ids=name_of)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path, place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "walk"
    shutil.copytree(place, folder, symlinks=True)
    for line in typed(page):
        if any(re.search(pattern, " ".join(line)) for pattern in NOT_RUN):
            continue
        assert line[0] == "tuner", f"{line}: run it here, or say in NOT_RUN why not"
        words = line[1:]
        if words[0] not in WRITE:
            words = ["simulated.yaml" if word == "profile.yaml" else word for word in words]
        if words[0] in ON_AN_ENGINE and "--world" not in words:
            words += SIMULATED
        if "-o" in words and "--force" in commands()[command_of(line)]:
            words.append("--force")
        run_in(folder, words)
    if page.name == "tutorial.md":
        assert "max-num-seqs: 16 " in (folder / "serve.yaml").read_text(encoding="utf-8")
        assert "--max-num-seqs 128" in (folder / "compose.yaml").read_text(encoding="utf-8")
        swept = load(folder / "simulated.yaml")
        assert swept.baseline is not None
        assert swept.baseline.max_num_seqs == swept.baseline.numbers_at == 128
        assert swept.baseline.numbers is not None
        assert swept.baseline.numbers.attainment < 0.8 < swept.promise.attainment


def test_generated_pages_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
