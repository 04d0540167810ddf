"""Try what Ray by itself makes of workers that are killed: its restarts, and its pool of actors.

    python scripts/try_ray_restarts.py

A cluster of two nodes on this machine, each with a GPU in name alone. A line for each case says
what became of it; docs/decisions/0015-worker-pool.md says what that means. Takes a minute.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.util.actor_pool import ActorPool
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 << 20}
TRIAL_S, MOMENT_S = 1.5, 0.3
WINDOWS = 6
ANSWER_TIMEOUT_S = 60.0


class Place:
    """As much of a worker as matters: it is told what to replay, and writes down what it does."""

    def __init__(self, notes: str) -> None:
        self._notes, self._known = Path(notes), set[int]()

    def who(self) -> tuple[int, str, list[int]]:
        return os.getpid(), ray.get_runtime_context().get_node_id()[:4], ray.get_gpu_ids()

    def learn(self, number: int) -> None:
        self._known.add(number)

    def trial(self, number: int) -> tuple[int, bool]:
        """Return where it was made, and whether that place still knew what to replay."""
        self._note("begun")
        time.sleep(TRIAL_S)
        return os.getpid(), number in self._known

    def windows(self) -> Iterator[tuple[int, int]]:
        for window in range(WINDOWS):
            time.sleep(MOMENT_S)
            self._note("replayed")
            yield os.getpid(), window

    def _note(self, what: str) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{what} {os.getpid()}\n")


class Workers:
    """Starts them as tuner does, a placement group each."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.notes = cluster, folder / "notes"
        self._groups: dict[Any, Any] = {}

    def start(self, **how: int) -> Any:  # noqa: ANN401 - Ray's
        group = placement_group([{"CPU": 1.0, "GPU": 1.0}], strategy="STRICT_PACK")
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        actor = (
            ray.remote(Place)
            .options(num_cpus=1, num_gpus=1, scheduling_strategy=where, **how)
            .remote(str(self.notes))
        )
        self._groups[actor] = group
        return actor

    def dismiss(self, *actors: Any) -> None:  # noqa: ANN401 - Ray's
        """End these, or all."""
        for actor in actors or list(self._groups):
            ray.kill(actor)
            remove_placement_group(self._groups.pop(actor))

    def noted(self, what: str) -> list[int]:
        """Return in which processes this was done."""
        lines = self.notes.read_text(encoding="utf-8").splitlines() if self.notes.exists() else []
        return [int(pid) for one, pid in map(str.split, lines) if one == what]

    def wait_for(self, what: str) -> int:
        """Return where it was done first."""
        while not self.noted(what):
            time.sleep(0.02)
        return self.noted(what)[0]


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def answer(reference: Any) -> Any:  # noqa: ANN401 - Ray's
    """Return what comes of a call, or the name of what is raised."""
    try:
        return ray.get(reference, timeout=ANSWER_TIMEOUT_S)
    except RayError as error:
        return type(error).__name__


def retried(workers: Workers) -> str:
    """A worker is killed in a trial; Ray restarts it and does the trial again."""
    actor = workers.start(max_restarts=-1, max_task_retries=-1)
    before = ray.get(actor.who.remote())
    ray.get(actor.learn.remote(1))
    trial = actor.trial.remote(1)
    at_s = kill(workers.wait_for("begun"))
    found = answer(trial)
    after = ray.get(actor.who.remote())
    return (
        f"the caller gets {found} after {time.monotonic() - at_s:.1f} s and no error; "
        f"{before} is {after}; begun {len(workers.noted('begun'))} times"
    )


def node_lost(workers: Workers) -> str:
    """A worker's node dies in a trial."""
    cluster, head = workers.cluster, workers.cluster.head_node.node_id
    both = [workers.start(max_restarts=-1, max_task_retries=-1) for _ in range(2)]
    found = {ray.get(one.who.remote())[1]: one for one in both}
    workers.dismiss(found.pop(head[:4]))  # it stays, and there is room on it
    ((node, actor),) = found.items()
    before = ray.get(actor.who.remote())
    ray.get(actor.learn.remote(1))
    trial = actor.trial.remote(1)
    workers.wait_for("begun")
    at_s = time.monotonic()
    (lost,) = (one for one in cluster.list_all_nodes() if one.node_id.startswith(node))
    cluster.remove_node(lost, allow_graceful=False)
    made = answer(trial)
    after_s = time.monotonic() - at_s
    after = ray.get(actor.who.remote())
    cluster.add_node(**NODE)
    return f"the caller gets {made} after {after_s:.1f} s and no error; {before} is {after}"


def streamed(workers: Workers) -> str:
    """A worker is killed while it tells of one window after another."""
    actor = workers.start(max_restarts=-1, max_task_retries=-1)
    made = actor.windows.options(num_returns="streaming").remote()
    found = []
    for reference in made:
        found.append(ray.get(reference))
        if len(found) == WINDOWS // 2:
            kill(found[0][0])
    made_by = sorted({pid for pid, _ in found})
    told = [(made_by.index(pid), window) for pid, window in found]
    return (
        f"the caller gets (process, window) {told}; replayed were {len(workers.noted('replayed'))}"
    )


def restarted(workers: Workers) -> str:
    """The same with restarts alone: nothing is done again."""
    actor = workers.start(max_restarts=-1, max_task_retries=0)
    ray.get(actor.learn.remote(1))
    trial = actor.trial.remote(1)
    at_s = kill(workers.wait_for("begun"))
    said, later = [answer(trial)], Any
    while isinstance(later := answer(actor.trial.remote(1)), str):
        said.append(later)
        time.sleep(0.05)
    count = {one: said.count(one) for one in said}
    return f"{count}, then {later}, {time.monotonic() - at_s:.1f} s after it was killed"


def pooled(workers: Workers) -> str:
    """One of two workers in an ActorPool is killed: of six trials how many come?"""
    pool = ActorPool([workers.start(), workers.start()])
    for number in range(6):
        pool.submit(lambda actor, one: actor.trial.remote(one), number)
    kill(workers.wait_for("begun"))
    found: list[Any] = []
    while pool.has_next():
        try:
            found.append(pool.get_next_unordered(timeout=ANSWER_TIMEOUT_S)[0])
        except RayError as error:
            found.append(type(error).__name__)
    return f"{found}: {len({one for one in found if isinstance(one, int)})} worker is left"


CASES: dict[str, Callable[[Workers], str]] = {
    "restarts and retries": retried,
    "restarts and retries, its node dies": node_lost,
    "restarts and retries, streamed": streamed,
    "restarts alone": restarted,
    "ActorPool": pooled,
}


def main() -> None:
    with ExitStack() as silently:  # Ray prints what happens on its nodes
        nowhere = silently.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        silently.enter_context(redirect_stdout(nowhere))
        silently.enter_context(redirect_stderr(nowhere))
        tried()


def tried() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
        print(f"Ray {ray.__version__}", file=sys.__stdout__)
        for name, case in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                workers = Workers(cluster, Path(folder))
                print(f"{name}: {case(workers)}", file=sys.__stdout__, flush=True)
                workers.dismiss()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
