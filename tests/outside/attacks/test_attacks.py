"""Files of strangers: names, bombs, links, and profiles and runs that somebody else made."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.outside.machines.swept import HERE as MACHINES
from tests.outside.table import (
    BAD_INPUT,
    GATE_FAILED,
    JOURNAL,
    OK,
    REPLAYS,
    UNDECIDED,
    USAGE,
    Done,
    ended,
    run,
    start,
    words,
)

pytestmark = pytest.mark.attack

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e|[a](b)[bold]x"
SIM = ("--world", MACHINES / "still" / "world.yaml")
SERVE = "model: tuner:tiny\nmax-num-seqs: 256\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    shutil.copy(MACHINES / "traces" / "light.jsonl", folder / "prod.jsonl")
    more = ("--trace", "prod.jsonl", "--ceiling", "8", "--run-dir", "run")
    assert run(folder, "sweep", *SIM, *more).code == OK
    (folder / "serve.yaml").write_text(SERVE)
    return folder


@pytest.fixture
def folder(swept: Path, tmp_path: Path) -> Path:
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(path: Path, edit: Callable[[dict[str, Any]], object], *, seal: bool = True) -> None:
    """Edit a profile as its author could: a digest that fits is no secret."""
    profile = yaml.safe_load(path.read_text())
    edit(profile)
    if seal:
        rest = {key: value for key, value in profile.items() if key != "digest"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        profile["digest"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    path.write_text(yaml.safe_dump(profile, sort_keys=False))


# Names


@pytest.mark.parametrize(
    "name",
    ["-d.yaml", "--help.yaml", "a b.yaml", "q'u\"o.yaml", "$(id);`id`.yaml", "%s{x}.yaml",
     "a\nb.yaml", "a\r\x1b[31m.yaml", "a\u202eb.yaml", "ü.yaml"],
)  # fmt: skip
def test_a_name_is_a_name_and_what_is_printed_of_it_can_be_pasted(folder: Path, name: str) -> None:
    (folder / "serve.yaml").rename(folder / name)
    done = run(folder, "apply", "profile.yaml", "--", name)
    assert done.code == OK, done.stderr
    assert (folder / name).read_text() != SERVE
    assert not set("\x1b\u202e\r") & set(done.stdout + done.stderr)
    (undo,) = [line for line in done.stdout.splitlines() if "--rollback" in line]
    pasted = undo[undo.index("tuner ") + len("tuner ") :]  # into a shell
    split = ["bash", "-c", f"printf '%s\\0' {pasted}"]
    given = subprocess.run(split, capture_output=True, check=True).stdout.decode().split("\0")
    assert run(folder, given[0], *given[1:-1]).code == OK
    assert (folder / name).read_text() == SERVE


def test_names_of_strangers_steer_no_terminal_and_no_page(tmp_path: Path) -> None:
    trace = (MACHINES / "traces" / "light.jsonl").read_text()
    header, rows = trace.split("\n", 1)
    named = {**json.loads(header), "model": HOSTILE, "notes": [HOSTILE], "source": HOSTILE}
    (tmp_path / "prod.jsonl").write_text(json.dumps(named) + "\n" + rows)
    shown = [
        run(tmp_path, "trace", "show", "prod.jsonl"),
        run(tmp_path, "sweep", *SIM, "--trace", "prod.jsonl", "--run-dir", "run"),
        run(tmp_path, "show", "profile.yaml", "--details"),
        run(tmp_path, "plan", "profile.yaml"),
        run(tmp_path, "show", "run", "-o", "page.html"),
    ]
    for done in shown:
        assert done.code == OK, done.stderr
        assert not set("\x1b\u202e") & set(done.stdout + done.stderr)
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


# Bombs


def bombs(folder: Path) -> dict[str, Path]:
    """Write files that are small, or never end, and large once they are read."""
    nines = ",".join(["*b"] * 9)
    aliases = ["a: &a [x,x,x,x,x,x,x,x,x]"] + [
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]" for i in range(12)
    ]
    texts = {
        "aliases.yaml": "schema_version: 1\n" + "\n".join(aliases) + "\n",
        "deep.yaml": "schema_version: " + "[" * 100_000 + "\n",
        "merges.yaml": f"schema_version: 1\nb: &b {{c: 1}}\n<<: [{nines}]\n",
        "tag.yaml": "schema_version: !!python/object/apply:os.system ['touch pwned']\n",
        "digits.yaml": "schema_version: 1\na: " + "9" * 1_000_000 + "\n",
        "sexagesimal.yaml": "schema_version: 1\na: 1" + ":1" * 100_000 + "\n",
        "deep.jsonl": '{"a":' * 300_000 + "\n",
        "line.jsonl": '{"timestamp":1,"input_length":' + "1" * 30_000_000 + "\n",
        "keys.jsonl": "{" + ",".join(f'"k{i}":1' for i in range(200_000)) + "}\n",
        "columns.csv": ",".join(f"c{i}" for i in range(300_000)) + "\n",
        "quote.csv": 'timestamp,input_length,output_length\n"' + "x\n" * 5_000_000,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.jsonl", b"0" * 50_000_000)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    return {path.name: path for path in folder.iterdir()}


BOMBS = (
    *("aliases.yaml", "deep.yaml", "merges.yaml", "tag.yaml", "digits.yaml", "sexagesimal.yaml"),
    *("deep.jsonl", "line.jsonl", "keys.jsonl", "columns.csv", "quote.csv", "bomb.zip"),
    *("pipe.jsonl", "zero.jsonl"),
)


@pytest.fixture(scope="module")
def armed(swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("armed")
    shutil.copy(swept / "profile.yaml", folder)
    bombs(folder)
    return folder


MOST = {"ulimit": 2_500_000, "seconds": 40}
"""KiB that a command may take that reads a bomb, and how long it may."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_bounds(armed: Path, name: str) -> None:
    commands: list[tuple[str, ...]] = [("show" if name.endswith(".yaml") else "trace show", name)]
    if name == "aliases.yaml":
        commands.append(("apply", "profile.yaml", name))
    for command in commands:
        program = [Path(sys.executable).with_name("tuner"), *words(*command)]
        bounded = f"ulimit -v {MOST['ulimit']}; exec {shlex.join(map(str, program))}"
        done = subprocess.run(
            ["bash", "-c", bounded], cwd=armed, capture_output=True, text=True,
            timeout=MOST["seconds"], check=False,
        )  # fmt: skip
        assert done.returncode in {USAGE, BAD_INPUT}, done.stderr
        assert name in Done(done.returncode, done.stdout, done.stderr).error
    assert not (armed / "pwned").exists()


# Profiles of strangers

ARGUMENTS: dict[str, object] = {
    "trust_remote_code": True,
    "worker_cls": "evil.Worker",
    "worker_extension_cls": "evil.Extension",
    "scheduler_cls": "evil.Scheduler",
    "logits_processors": ["evil:Processor"],
    "tool_parser_plugin": "./evil.py",
    "allowed_local_media_path": "/",
    "otlp_traces_endpoint": "http://evil.example/",
    "middleware": ["evil.Middleware"],
    "api_key": ["attacker"],
    "host": "0.0.0.0",
    "chat_template": "/etc/passwd",
    "code_revision": "evil",
    "hf_overrides": {"auto_map": "evil"},
    "kv_transfer_config": {"kv_connector_module_path": "evil"},
    "additional_config": {"x": 1},
}


ELSEWHERE = ("trust_remote_code", "worker_cls", "middleware")
"""Those that are also tried in a profile that an engine is started from."""


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_that_is_not_about_speed_is_neither_run_nor_written(
    folder: Path, argument: str
) -> None:
    def edit(profile: dict[str, Any]) -> None:
        profile["engine"][argument] = ARGUMENTS[argument]
        profile["provenance"]["engine"] = "vllm"

    change(folder / "profile.yaml", edit)
    done = run(folder, "apply", "profile.yaml", "serve.yaml", "--force")
    assert argument.split("_", maxsplit=1)[0] not in (folder / "serve.yaml").read_text()
    if done.code != OK:
        assert (folder / "serve.yaml").read_text() == SERVE
        assert argument in done.error
    commands = ("verify", "refine") if argument in ELSEWHERE else ()
    for command in commands:
        refused = run(folder, command, "profile.yaml", "--trace", "prod.jsonl", "--force")
        assert refused.code in {USAGE, BAD_INPUT, GATE_FAILED}, refused.stderr
        assert argument in refused.error
        assert "starting" not in refused.stderr


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a number": ("digest", lambda p: p["curve"][0].update(attainment=0.5)),
    "a key more": ("speed", lambda p: p["decision"].update(speed=3)),
    "a section more": ("extra", lambda p: p.update(extra={})),
    "a key less": ("verdict", lambda p: p["decision"].pop("verdict")),
    "a text": ("max_num_seqs", lambda p: p["decision"].update(max_num_seqs="many")),
    "another verdict": ("verdict", lambda p: p["decision"].update(verdict="perfect")),
    "a share above 1": ("attainment", lambda p: p["curve"][0].update(attainment=1.5)),
    "two caps": ("max_num_seqs", lambda p: p["engine"].update(max_num_seqs=1)),
    "no version": ("schema_version", lambda p: p.pop("schema_version")),
    "a new version": ("schema_version", lambda p: p.update(schema_version=99)),
    "no digest": ("digest", lambda p: p.pop("digest")),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_profile_is_refused_by_the_key(folder: Path, edit: str) -> None:
    key, make = EDITS[edit]
    change(folder / "profile.yaml", make, seal=edit not in {"a number", "no digest"})
    for command in (("show",), ("plan",), ("apply",)):
        done = run(folder, *command, "profile.yaml")
        assert done.code == BAD_INPUT, done.stderr
        assert "profile.yaml" in done.error
        assert key in done.error


# Runs of strangers

DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a line of something else": lambda lines: [*lines[:5], b"garbage\n", *lines[5:]],
    "no UTF-8": lambda lines: [*lines[:5], b"\xff\n", *lines[5:]],
    "nothing": lambda _: [],
    "a number that is none": lambda lines: [
        line.replace(b'"elapsed_s": ', b'"elapsed_s": NaN, "x": ').replace(
            b'"elapsed_s":', b'"elapsed_s":NaN,"x":'
        )
        for line in lines
    ],
    "another format": lambda lines: [lines[0].replace(b'"command"', b'"words"'), *lines[1:]],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_is_one_error(folder: Path, damage: str) -> None:
    journal = folder / "run" / JOURNAL
    journal.write_bytes(b"".join(DAMAGE[damage](journal.read_bytes().splitlines(keepends=True))))
    before = journal.read_bytes()
    again = ("show", "run", "--slo", "ttft=1s", "-o", "again.yaml")
    for options in (again, ("resume", "run")):
        done = run(folder, *options)
        assert done.code == BAD_INPUT, (options, done.stderr)
        assert "run" in done.error
        assert journal.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [("003.npz", b""), ("003.npz", b"PK\x03\x04"), ("003.npz", None), ("000.npz", b"0" * 99)],
)
def test_a_damaged_replay_is_one_error(folder: Path, name: str, content: bytes | None) -> None:
    path = folder / "run" / REPLAYS / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    done = run(folder, "show", "run", "--slo", "ttft=1s", "-o", "again.yaml")
    assert done.code == BAD_INPUT, done.stderr
    assert name in done.error


def test_a_run_whose_trace_was_edited_is_not_rescored(folder: Path) -> None:
    trace = folder / "run" / "trace.jsonl"
    trace.write_text(trace.read_text().replace('"input_length":1', '"input_length":2'))
    done = run(folder, "show", "run", "--slo", "ttft=1s", "-o", "again.yaml")
    assert done.code == BAD_INPUT
    assert "trace.jsonl" in done.error


STRANGE: dict[str, tuple[str, str | list[object]]] = {
    "an argument": ("trust_remote_code", "sweep --trace=prod.jsonl --set=trust_remote_code=true"),
    "a base": ("worker_cls", "sweep --trace=prod.jsonl --base=evil.yaml"),
    "a base of a comparison": (
        "worker_cls", "compare --trace=prod.jsonl --profile=profile.yaml --base=evil.yaml",
    ),
    "an address": ("--url", "verify profile.yaml --trace=prod.jsonl --url=http://evil.example"),
    "a cluster": ("--ray", "sweep --trace=prod.jsonl --ray=evil.example:10001"),
    "a file to write": ("--storage", "refine profile.yaml --trace=prod.jsonl --storage=serve.yaml"),
    "a confirmation": ("--trust", "refine profile.yaml --trace=prod.jsonl --trust"),
    "another command": ("command", "apply profile.yaml serve.yaml"),
    "no words": ("journal.jsonl", ["sweep", 3]),
    "no such option": ("--no-such", "sweep --trace=prod.jsonl --no-such"),
}  # fmt: skip
"""What the error must name, and the command in the journal."""


@pytest.mark.parametrize("name", STRANGE)
def test_a_strangers_journal_asks_for_nothing_that_only_a_user_may(folder: Path, name: str) -> None:
    named, command = STRANGE[name]
    (folder / "evil.yaml").write_text("model: m\nworker-cls: evil.Worker\n")
    journal = folder / "run" / JOURNAL
    first, *rest = journal.read_text().splitlines(keepends=True)
    listed = command.split() if isinstance(command, str) else command
    plan = {**json.loads(first), "command": listed}
    journal.write_text("".join([json.dumps(plan) + "\n", *rest]))
    done = run(folder, "resume", "run")
    assert done.code in {USAGE, BAD_INPUT}
    assert named in done.error
    assert (folder / "serve.yaml").read_text() == SERVE


def test_a_run_directory_writes_through_no_link(folder: Path) -> None:
    victim, replays = folder / "victim.txt", folder / "run" / REPLAYS
    victim.write_text("precious")
    journal = folder / "run" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    cut = next(place for place, line in enumerate(lines) if b"/002.npz" in line)
    journal.write_bytes(b"".join(lines[:cut]))
    for path in replays.iterdir():
        if path.name >= "002.npz":
            path.unlink()
    for number in range(2, 20):
        for name in (f".{number:03}.npz.partial", f".{number:03}.npz.tmp", f"{number:03}.npz"):
            (replays / name).symlink_to(victim)
    done = run(folder, "resume", "run")
    assert done.code in {OK, BAD_INPUT}, done.stderr
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", [JOURNAL, REPLAYS, "trace.jsonl", "profile.yaml", "result.json"])
def test_a_new_run_writes_through_no_link(tmp_path: Path, name: str) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "run"
    planted.mkdir()
    if name == REPLAYS:
        victim.mkdir()
    else:
        victim.write_text("precious")
    (planted / name).symlink_to(victim)
    trace = ("--trace", MACHINES / "traces" / "alone.jsonl")
    done = run(tmp_path, "sweep", *SIM, *trace, "--ceiling", "2", "--run-dir", "run")
    assert done.code in {OK, UNDECIDED, BAD_INPUT}, done.stderr
    assert not list(victim.iterdir()) if name == REPLAYS else victim.read_text() == "precious"


def test_a_pipe_for_a_journal_is_refused_and_not_waited_for(folder: Path) -> None:
    (folder / "run" / JOURNAL).unlink()
    os.mkfifo(folder / "run" / JOURNAL)
    for command in (("show", "run", "-o", "page.html"), ("show", "run", "-o", "requests.csv")):
        done = ended(start(folder, *command), timeout_s=20)
        assert done.code == BAD_INPUT
