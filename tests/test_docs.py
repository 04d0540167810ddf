"""Docs that cannot lie: links resolve, commands and options exist, every example is used."""

import importlib.metadata
import importlib.util
import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from tests.support.places import ROOT
from tuner.commands.root import app
from tuner.runs.journal import STORED_PURPOSES
from tuner.twin.uncertainty import Purpose

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED_LINE = re.compile(r"`([a-z]\w*(?:/\w+)*\.py):(\d+)` `([^`]+)`")
A_LINE = re.compile(r"\.py:\d+`")
POINT = re.compile(r"^\| (\d+) \|.*\|([^|]+)\|$", flags=re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)
TARGET = re.compile(r"^([a-z-]+):", flags=re.MULTILINE)

A_MACHINE = re.compile(r"/(?:root|work|home/\w+|Users/\w+)/\w")
A_REGISTRY = re.compile(r"py[p]i\.(?:org|python)|files\.python[h]osted|download\.py[t]orch")


def text_files() -> dict[str, str]:
    """Return what git would keep of this folder: path → text."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in paths}


FILES = text_files()
PAGES = sorted(name for name in FILES if name.endswith(".md"))
EXAMPLES = sorted(name for name in FILES if re.match(r"examples/.*(?<!\.md)$", name))


@cache
def commands() -> dict[str, set[str]]:
    """Return every command by its words, with the options it takes."""
    found: dict[str, set[str]] = {}
    todo = [("tuner", typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        inner = getattr(command, "commands", {})
        todo += [(f"{words} {name}", child) for name, child in inner.items()]
        if not inner:
            found[words] = {"--help"}
            for option in command.params:
                found[words] |= {*option.opts, *option.secondary_opts}
    return found


def test_whatever_starts_engines_takes_the_cure_for_a_vllm_that_lacks_names() -> None:
    """Which names --any-vllm, whatever the command."""
    starting = {words: options for words, options in commands().items() if "--set" in options}
    assert set(starting) == {
        *("tuner sweep", "tuner refine", "tuner compare", "tuner verify", "tuner doctor"),
    }
    assert all("--any-vllm" in options for options in starting.values())


def shell_lines(page: str) -> list[list[str]]:
    """Return the commands that a page tells its reader to type, as words.

    A ``sh`` block is typed; in a ``console`` block, what follows a ``$`` is.
    """
    typed: list[str] = []
    for kind, body in FENCE.findall(FILES[page]):
        lines = body.replace("\\\n", " ").splitlines()
        if kind == "sh":
            typed += lines
        elif kind == "console":
            typed += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [words for line in typed if (words := shlex.split(line, comments=True))]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = HEADING.findall(FENCE.sub("", FILES[page]))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for link in LINK.findall(FENCE.sub("", FILES[page])):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.resolve().relative_to(ROOT).as_posix()), link


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_a_page_shows_exists(page: str) -> None:
    known = commands()
    targets = set(TARGET.findall(FILES["Makefile"]))
    for line in shell_lines(page):
        if line[0] == "make":
            assert {word for word in line[1:] if "=" not in word} <= targets, line
        if line[0] == "tuner":
            command = max(
                (name for name in known if line[: len(name.split())] == name.split()), key=len
            )
            shown = {word.partition("=")[0] for word in line if re.match("--?[a-z]", word)}
            assert shown <= known[command], line


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    for path, name in NAMED_TEST.findall(FILES[page]):
        assert re.search(rf"^(?:async )?def {name}\(", FILES[path], flags=re.MULTILINE), name


def test_every_point_about_gpus_says_what_it_stands_on() -> None:
    points = POINT.findall(FILES["docs/gpu.md"])
    assert [number for number, _ in points] == [str(number) for number in range(1, 14)]
    for number, stands_on in points:
        known = bool(NAMED_TEST.search(stands_on))
        read = "*read only*" in stands_on and bool(NAMED_LINE.search(stands_on))
        assert known or read or "*not seen*" in stands_on, number


@pytest.mark.vllm
def test_every_line_of_vllm_that_a_page_names_says_what_the_page_says() -> None:
    if not importlib.metadata.version("vllm").startswith("0.32"):
        pytest.skip("the lines are those of vLLM 0.32")
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    page = FILES["docs/gpu.md"]
    named = NAMED_LINE.findall(page)
    assert len(named) == len(A_LINE.findall(page)) > 0, "a line without words is not checked"
    for path, line, words in named:
        assert words in (Path(spec.origin).parent / path).read_text().splitlines()[int(line) - 1]


def test_every_command_is_in_the_reference() -> None:
    headings = set(HEADING.findall(FENCE.sub("", FILES["docs/cli.md"])))
    assert set(commands()) <= headings


def test_every_page_is_reached_from_the_readme() -> None:
    todo, seen = {"README.md"}, set[str]()
    while todo:
        page = todo.pop()
        seen.add(page)
        for link in LINK.findall(FENCE.sub("", FILES[page])):
            target = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            if target.is_relative_to(ROOT) and target.relative_to(ROOT).as_posix() in PAGES:
                todo |= {target.relative_to(ROOT).as_posix()} - seen
    assert set(PAGES) - seen == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_used_by_a_test(example: str) -> None:
    """By its name, or by that of its folder, of which a test takes all."""
    tests = [text for name, text in FILES.items() if re.match(r"tests/.*\.py$", name)]
    path = Path(example)
    used = [path.name] if path.parent.name == "examples" else [path.name, path.parent.as_posix()]
    assert any(name in text for name in used for text in tests)


@pytest.mark.parametrize("pattern", [A_MACHINE, A_REGISTRY], ids=["machine", "registry"])
def test_nothing_here_names_a_place_that_others_do_not_have(pattern: re.Pattern[str]) -> None:
    found = {name: pattern.search(text) for name, text in FILES.items()}
    assert {name: hit[0] for name, hit in found.items() if hit} == {}


EVIDENCE = sorted(path.stem for path in (ROOT / "docs" / "evidence").glob("*.json"))


def test_the_words_say_how_a_journal_spells_every_purpose() -> None:
    _, _, words = FILES["docs/measuring.md"].partition("\n## Words\n")
    rows = re.findall(r"^\| `(\w+)` \| purpose: .*\| `(\w+)` \|$", words, flags=re.MULTILINE)
    spelt = [(purpose, STORED_PURPOSES.get(purpose, purpose)) for purpose in get_args(Purpose)]
    assert sorted(rows) == sorted(spelt)


def test_no_word_is_in_the_words_twice() -> None:
    _, _, words = FILES["docs/measuring.md"].partition("\n## Words\n")
    named = re.findall(r"^\| (.+?) \|", words, flags=re.MULTILINE)
    assert len(named) == len(set(named)) > 40


def test_every_table_of_the_experiments_is_rendered_from_a_file() -> None:
    page = FILES["docs/experiments.md"]
    rendered = re.compile(r"\[\[\[cog.*?\]\]\] -->.*?<!-- \[\[\[end\]\]\] -->", flags=re.DOTALL)
    assert re.findall(r"^\|.*", rendered.sub("", page), flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_says_what_it_rests_on_and_a_page_shows_it(name: str) -> None:
    kept = json.loads((ROOT / "docs" / "evidence" / f"{name}.json").read_text(encoding="utf-8"))
    assert all(kept[what] for what in ("command", "commit", "versions", "machine", "found"))
    assert kept.get("date") or "date" in kept["not_kept"]
    assert any(f"evidence/{name}.json" in FILES[page] for page in PAGES)
