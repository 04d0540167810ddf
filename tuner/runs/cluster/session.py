"""A Ray cluster: joined or started, its nodes, and tasks on them. The only importer of ray.

Tasks and the room that they take belong to this process: when it ends, however it does, Ray takes
both back.
"""

import asyncio
import atexit
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from tuner.errors import EngineError, RunError, UsageError
from tuner.runs.cluster.nodes import Node, Share
from tuner.system import files

LOCAL = "local"
STORE_BYTES = 100 << 20
"""Of a cluster that we start: what travels is a few megabytes a trial."""

CONNECT_S, REPLY_S, DESCRIBE_S = 5.0, 20.0, 120.0
"""How long a cluster may take to be reached, and to say that it is one; and a node to import tuner
and look at itself."""

LONGEST_FOLDER = 18
"""Characters that a path of 107, which is all that a socket may have, leaves before Ray's own."""

_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent to anybody; read by the import
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray is going to do

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise UsageError(
        f"--ray needs Ray, which is not installed here ({missing})",
        hint="Run pip install 'tuner[ray]', the version of the cluster.",
    ) from None


class LostError(Exception):
    """A worker is gone, with what it was doing."""


@contextmanager
def joined(address: str) -> Iterator["RaySession"]:
    """Be part of the cluster at an address, or of one that is started on this machine: ``local``.

    Ray prints what happens on its nodes to stdout: it goes nowhere. Raises RunError when there is
    no cluster, or one of another Ray or Python.
    """
    how: dict[str, Any] = {"address": address}
    with ExitStack() as undoing:  # also after a signal
        nowhere = undoing.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        undoing.enter_context(redirect_stdout(nowhere))
        if address == LOCAL:
            how |= _own_cluster(undoing)
        else:
            _check_replies(address)
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        undoing.callback(_leave)
        undoing.callback(signal.alarm, 0)  # Ray has us aborted 3 s after a SIGTERM
        try:
            with _our_signals():
                ray.init(**how, log_to_driver=False, logging_level=logging.CRITICAL)
        except (RuntimeError, ValueError, OSError, RayError) as error:
            raise RunError(
                f"--ray {address}: {_last_line(error)}",
                hint="Run tuner on a node of the cluster, with its versions of Ray and Python.",
            ) from error
        yield RaySession()


def _own_cluster(undoing: ExitStack) -> dict[str, Any]:
    """Return how a cluster is started for this process alone."""
    place = tempfile.gettempdir()
    short = place if len(place) <= LONGEST_FOLDER else "/tmp"  # noqa: S108 - of our name in it
    folder = str(files.new_folder("ray", short))
    clear = partial(shutil.rmtree, folder, ignore_errors=True)
    undoing.callback(clear)
    # once more after Ray has ended what it was starting: the last to register runs first
    atexit.register(clear)
    # Ray's own 15 lets whatever else runs on the machine take an engine's time
    os.environ.setdefault("RAY_worker_niceness", "0")
    if os.environ.keys().isdisjoint(_TOKENS):
        # Ray makes a token as well, in a file of the home folder that all may read
        os.environ[_TOKENS[0]] = secrets.token_hex(32)
    temporary = f"{folder}/r"  # Ray opens its own to everybody
    own = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    return own | {"_temp_dir": temporary}


def _leave() -> None:
    with _our_signals():
        ray.shutdown()


class RaySession:
    """A cluster that this process is part of."""

    def cautions(self) -> tuple[str, ...]:
        """Return a warning where anybody who reaches the cluster runs code in it."""
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":  # Ray sets it where it found one
            return ()
        words = "the Ray cluster asks for no token: anybody who reaches its ports runs code as you"
        return (f"{words}; set RAY_AUTH_MODE=token where it is started, and here (docs/more.md)",)

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, in a steady order."""
        nodes = [
            Node(each["NodeID"], each["NodeManagerHostname"], each["Resources"], each["Labels"])
            for each in ray.nodes()
            if each["Alive"]
        ]
        return sorted(nodes, key=lambda node: (node.name, node.id))

    def ask(
        self, function: Callable[..., Any], nodes: Sequence[Node], *arguments: object
    ) -> dict[str, Any]:
        """Call a function on each node: id → what it returns, or the reason why it did not as an
        exception."""
        # called again where its worker died
        remote = ray.remote(num_cpus=0, max_calls=1, max_retries=2)(function)
        calls = {
            remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
            ).remote(*arguments): node.id
            for node in nodes
        }
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=DESCRIBE_S)
        late = LostError(f"no answer within {DESCRIBE_S:.0f}s")
        replies: dict[str, Any] = dict.fromkeys(calls.values(), late)
        for call in ready:
            try:
                replies[calls[call]] = ray.get(call)
            except RayError as error:
                replies[calls[call]] = LostError(_last_line(error))
        return replies

    async def stream(
        self, function: Callable[..., Any], arguments: Sequence[object], share: Share,
        nodes: Sequence[str], *, first_within_s: float,
    ) -> AsyncGenerator[Any, None]:  # fmt: skip
        """Run a generator as a task on one of these nodes, as soon as there is room, and yield what
        it yields. Its end is the task's end, whatever it does.

        Raises LostError where it is gone, EngineError for what fails in it, and TimeoutError where
        nothing comes for so long at first.
        """
        remote = ray.remote(num_returns="streaming", max_retries=0, max_calls=1)(function)
        anywhere = {"ray.io/node-id": f"in({','.join(nodes)})"}
        news = remote.options(
            num_cpus=share.cpus, num_gpus=share.gpus, label_selector=anywhere
        ).remote(*arguments)
        try:
            async with asyncio.timeout(first_within_s):
                first = await (await anext(news))
            yield first
            async for reference in news:
                yield await reference
        except RayTaskError as error:
            raise EngineError(
                f"a worker failed: {_last_line(error)}", hint="Look into Ray's logs of that node."
            ) from error
        except RayError as error:
            raise LostError(_last_line(error)) from error
        finally:
            if ray.is_initialized():
                ray.cancel(news, force=True)


def _check_replies(address: str) -> None:
    """Raise RunError unless a cluster of this Ray replies: joining none takes Ray 80 s, and ends
    the process."""
    hint = "Give HOST:PORT of its head node (6379 by default), auto, or --ray local."
    host, _, port = address.rpartition(":")
    if address != "auto":
        if "://" in address or not host or not port.isdecimal():
            raise UsageError(
                f"--ray {address or repr(address)}: is not the address of a cluster", hint=hint
            )
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise RunError(f"--ray {address}: {_last_line(error)}", hint=hint) from error
    words = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", "--address"]
    try:
        done = subprocess.run(  # noqa: S603 - Ray's own
            [*words, address], capture_output=True, text=True, check=False, timeout=REPLY_S
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"--ray {address}: no Ray cluster answers there", hint=hint) from None
    if done.returncode != 0:
        why = done.stderr.strip().rpartition("\n")[2] or "no Ray cluster is there"
        raise RunError(f"--ray {address}: {why}", hint=hint)


@contextmanager
def _our_signals() -> Iterator[None]:
    """Keep Ray from handlers of its own: with one SIGTERM drains what was hardly started for 30 s,
    or ends the process without a word."""
    install = signal.signal

    def kept(signalnum: int, handler: "signal._HANDLER") -> "signal._HANDLER":
        is_rays = str(getattr(handler, "__module__", None)).startswith("ray.")
        return signal.getsignal(signalnum) if is_rays else install(signalnum, handler)

    signal.signal = kept
    try:
        yield
    finally:
        signal.signal = install
        for number in (signal.SIGINT, signal.SIGTERM):  # below Python Ray has put its own there
            install(number, signal.getsignal(number))


def _last_line(error: BaseException) -> str:
    """Return what an error comes to: Ray's name all that may have been its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1] if isinstance(error, RayTaskError) else lines[0]
    return line.partition(". ")[0].rstrip(".:")
