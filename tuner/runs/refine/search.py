"""What the twin predicts of configurations, and the Optuna study of all that was tried.

Of the admission cap, the token budget and the number of KV blocks the twin predicts the effect for
free, for all of the traffic; of anything else only a replay can tell.
"""

import math
import warnings
from dataclasses import dataclass, field, replace

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from tuner.errors import RunError
from tuner.profile.evidence import StoredTwin
from tuner.replay.numbers import Measurement
from tuner.runs.journal import Configuration
from tuner.runs.refine.space import BLOCKS, CAP, MODELED, TOKENS, Space, number
from tuner.system.passwords import without_passwords
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.traffic.slo import Slo
from tuner.twin.samples import Loads, ask, draws_of

FREE = 300
"""Trials on the twin at most: each takes some milliseconds."""

BEST = 3
"""Configurations that are replayed of those that the twin ranks first."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

LIKELY = 5
"""Runs that the twin draws of each configuration: other laws, other speeds of the machine. What
just serves all at one speed is no match for what has room to spare."""

TAIL_WORTH = 0.01
"""Most that p99 E2EL counts beside goodput, reached where it halves or doubles: it decides between
configurations that serve as much, as it does for the knee."""

Served = tuple[float, float]
"""Attainment and p99 E2EL (NaN where it is not known), of a replay or by the twin."""


def served_in(numbers: Measurement) -> Served:
    return numbers.attainment, math.nan if numbers.e2el_s is None else numbers.e2el_s.p99


def gain_over(here: Served, knee: Served) -> tuple[float, bool]:
    """Return the logarithm of the ratio of goodput, in which the tail counts a little, so that one
    number orders configurations as the objective does (0.01 is 1 % better); and whether no goodput
    is lost."""
    shares = [max(EQUAL_ATTAINMENT, share) for share, _ in (here, knee)]
    tail = math.log(knee[1] / here[1]) * TAIL_WORTH / math.log(2) if here[1] and knee[1] else 0.0
    tail = 0.0 if math.isnan(tail) else max(-TAIL_WORTH, min(TAIL_WORTH, tail))
    return math.log(shares[0] / shares[1]) + tail, here[0] >= knee[0] - EQUAL_ATTAINMENT


class Study:
    """An Optuna study of all that was tried, on the twin and in replays: in memory, in a file, or
    behind an address, where ``optuna-dashboard`` shows it. The journal is the record: a storage
    that fails is given up."""

    def __init__(self, storage: str | None, space: Space) -> None:
        """Raises RunError when the storage cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.lost: str | None = None
        """Why the storage was given up; None while it serves."""

        self._distributions = {
            knob.name: CategoricalDistribution([str(value) for value in knob.values])
            for knob in space.knobs
        }
        try:
            where: RDBStorage | JournalStorage | None = None
            if storage is not None and "://" in storage:
                where = RDBStorage(storage)  # never Redis, whose values are pickled
            elif storage is not None:
                where = JournalStorage(JournalFileBackend(storage))
            self._study = optuna.create_study(
                storage=where,
                study_name=f"tuner-refine {self._distributions}; {dict(space.knee)}"[:400],
                direction="maximize",
                load_if_exists=True,
            )
            self._known = {each.user_attrs.get("label") for each in self._study.trials}
        except Exception as problem:  # of any driver
            raise RunError(
                f"--storage {without_passwords(str(storage))}: cannot be used "
                f"({type(problem).__name__})",
                hint="Give a file, or an address that SQLAlchemy takes: postgresql://..., "
                "sqlite:///...",
            ) from problem

    def tell(
        self, tried: Configuration, gain: float | None, *, fidelity: str, is_kept: bool
    ) -> None:
        """Add what was tried, once; without a gain it failed or was cut."""
        label = f"{fidelity}: {dict(tried)}"
        if label in self._known or self.lost is not None:
            return
        self._known.add(label)
        trial = create_trial(
            state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
            value=gain,
            params={name: str(tried.get(name)) for name in self._distributions},
            distributions=dict(self._distributions),
            user_attrs={"label": label, "fidelity": fidelity, "keeps_goodput": is_kept},
        )
        try:
            self._study.add_trial(trial)
        except Exception as problem:  # noqa: BLE001 - of any driver
            self.lost = f"the storage failed ({type(problem).__name__}): the search did without"


@dataclass(slots=True)
class Model:
    """The profile's twin, as a function of configurations."""

    twin: StoredTwin
    slo: Slo
    knee: Configuration
    known: dict[tuple[int, int, int], Served] = field(default_factory=dict)

    def predicts(self, configuration: Configuration) -> bool:
        """Whether it differs from the knee in nothing that the twin cannot predict."""
        fits = number(configuration[CAP]) < len(self.twin.law.decode_s)
        return fits and all(
            v == self.knee.get(k) for k, v in configuration.items() if k not in MODELED
        )

    def served(self, configuration: Configuration) -> Served:
        """Return what replays of the traffic would measure on average."""
        twin, cap, tokens = self.twin, number(configuration[CAP]), number(configuration[TOKENS])
        blocks = number(configuration.get(BLOCKS) or twin.shape.kv_blocks)
        if (cap, tokens, blocks) not in self.known:
            shape = replace(twin.shape, max_num_batched_tokens=tokens, kv_blocks=blocks)
            likely = draws_of(twin.laws[:LIKELY], twin.machine, twin.traffic)
            samples = ask(likely, Loads(twin.traffic), (cap,), shape, self.slo)
            share, tail_s = (
                float(samples.column(name, cap).mean()) for name in ("attainment", "e2el_p99_s")
            )
            self.known[cap, tokens, blocks] = share, tail_s
        return self.known[cap, tokens, blocks]

    def best(self, space: Space, study: Study) -> list[Configuration]:
        """Search what the twin predicts by free trials; return the best few, no two alike."""
        grid = {str(each): each for each in space.modeled() if self.predicts(each)}
        proposals = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=0), direction="maximize"
        )
        knee, gains = self.served(self.knee), dict[str, float]()
        for key in [*grid][:FREE]:  # all of a small space, else what the sampler proposes
            proposal = None
            if len(grid) > FREE:
                proposal = proposals.ask({"key": CategoricalDistribution([*grid])})
            tried = grid[key if proposal is None else proposal.params["key"]]
            gain, is_kept = gain_over(self.served(tried), knee)
            if proposal is not None:
                proposals.tell(proposal, gain if is_kept else -1e3)
            if is_kept:
                gains[str(tried)] = gain
            study.tell(tried, gain, fidelity="twin", is_kept=is_kept)

        def rank(key: str) -> tuple[float, ...]:
            tokens = abs(math.log(number(grid[key][TOKENS]) / number(self.knee[TOKENS])))
            return (-round(gains[key], 4), number(grid[key][CAP]), tokens)

        best: dict[int, Configuration] = {}
        for key in sorted(gains, key=rank):
            best.setdefault(round(gains[key] / ALIKE), grid[key])
        return [*best.values()][:BEST]
