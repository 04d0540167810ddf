"""A Ray cluster that this process joins: its nodes, and tasks on them. The only importer of ray.

Tasks and the room that they take belong to this process: when it ends, however it does, Ray takes
both back.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tuner.errors import EngineError, RunError, UsageError
from tuner.runs.cluster.nodes import Node, Share

REPLY_S, DESCRIBE_S = 20.0, 120.0
"""How long a cluster may take to say that it is one; and a node to import tuner and look at itself.
"""

ROOM_TIMEOUT_S = 120.0
"""How long the cluster may have no room for an engine."""

CURE = "tuner resume continues with what was measured."
ADDRESS = "Give HOST:PORT of its head node (6379 by default), or auto on one of its nodes."

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
    """Be part of the cluster at an address.

    Ray prints what happens on its nodes to stdout: it goes nowhere. Raises RunError when there is
    no cluster, or one of another Ray or Python.
    """
    _check_replies(address)
    with ExitStack() as undoing:  # also after a signal
        nowhere = undoing.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        undoing.enter_context(redirect_stdout(nowhere))
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        undoing.callback(_our_signals()(ray.shutdown))
        undoing.callback(signal.alarm, 0)  # Ray has us aborted 3 s after a SIGTERM
        try:
            with _our_signals():
                ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (RuntimeError, ValueError, OSError, RayError) as error:
            raise RunError(
                f"--ray {address}: {_last_line(error)}",
                hint="Run tuner on a node of the cluster, with its versions of Ray and Python.",
            ) from error
        yield RaySession()


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

    def ask(self, function: Callable[[], Any], nodes: Sequence[Node]) -> dict[str, Any]:
        """Call a function on each node: id → what it returns, or the reason why it did not as an
        exception."""
        # called again where its worker died
        remote = ray.remote(num_cpus=0, max_calls=1, max_retries=2)(function)
        replies, calls = dict[str, Any](), dict[str, Any]()
        for node in nodes:
            here = NodeAffinitySchedulingStrategy(node.id, soft=False)
            calls[node.id] = remote.options(scheduling_strategy=here).remote()
        ray.wait([*calls.values()], num_returns=len(calls), timeout=DESCRIBE_S)
        for node_id, call in calls.items():
            try:
                replies[node_id] = ray.get(call, timeout=0)
            except RayError as error:
                replies[node_id] = LostError(_last_line(error))
        return replies

    async def stream(
        self, function: Callable[..., Any], arguments: Sequence[object], share: Share,
        nodes: Sequence[str],
    ) -> AsyncGenerator[Any, None]:  # fmt: skip
        """Run a generator as a task on one of these nodes, as soon as there is room, and yield what
        it yields. Its end is the task's end, whatever it does.

        Raises LostError where it is gone, EngineError for what fails in it, and where there is no
        room for long.
        """
        remote = ray.remote(num_returns="streaming", max_retries=0, max_calls=1)(function)
        anywhere = {"ray.io/node-id": f"in({','.join(nodes)})"}
        news = remote.options(
            num_cpus=share.cpus, num_gpus=share.gpus, label_selector=anywhere
        ).remote(*arguments)
        try:
            async with asyncio.timeout(ROOM_TIMEOUT_S):
                first = await (await anext(news))
            yield first
            async for reference in news:
                yield await reference
        except TimeoutError:
            raise EngineError(
                f"the cluster has had no room for an engine ({share}) for {ROOM_TIMEOUT_S:.0f}s",
                hint=f"Free some of it; {CURE}",
            ) from None
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
    host, _, port = address.rpartition(":")
    if address != "auto" and ("/" in address or not host or not port.isdecimal()):
        raise UsageError(f"--ray {address!r}: is not the address of a cluster", hint=ADDRESS)
    words = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", "--address"]
    try:
        subprocess.run(  # noqa: S603 - Ray's own
            [*words, address], capture_output=True, check=True, timeout=REPLY_S
        )
    except subprocess.SubprocessError:
        message = f"--ray {address}: no cluster of Ray {ray.__version__} answers there"
        raise RunError(message, hint=ADDRESS) from None


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
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1] if isinstance(error, RayTaskError) else lines[0]
    return line.partition(". ")[0].rstrip(".:")
