"""A run of tuner as a run of MLflow, by MLflow's own client."""

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tuner.commands.export.options import ExportOptions
from tuner.commands.export.tables import Row
from tuner.errors import RunError, TargetError, UsageError
from tuner.profile.schema import ServingProfile

MOST_CHARACTERS = 500
"""Of a parameter's value, whatever the store."""

MOST_METRICS = 1000
"""Of a request to a server."""


def export(
    options: ExportOptions, profile: ServingProfile | None, tables: Mapping[str, Sequence[Row]]
) -> str:
    """Log the run and return what to print. Raises RunError, TargetError, UsageError."""
    if options.output is not None:
        raise UsageError("-o is for files", hint="Leave it out: --tracking-uri says where.")
    if profile is None:
        raise RunError(
            f"{options.run_dir}: has no profile: the run was not finished",
            hint="Go on with it: --resume.",
        )
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra
        from mlflow.tracking import MlflowClient  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            "--to mlflow needs MLflow's client", hint="pip install 'tuner[mlflow]'"
        ) from None
    try:
        client = MlflowClient(tracking_uri=options.tracking_uri)
        run_id = _logged(client, options, profile, tables.get("curve", ()))
    except (MlflowException, OSError) as problem:
        raise TargetError(
            f"MLflow: {' '.join(str(problem).split())}",
            hint="Check --tracking-uri, and that its server can be reached.",
        ) from None
    return f"MLflow: run {run_id} of experiment {options.experiment}\n"


def _logged(
    client: Any,  # noqa: ANN401 - MLflow's
    options: ExportOptions,
    profile: ServingProfile,
    curve: Sequence[Row],
) -> str:
    """Log the run whole, and return its id."""
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - an extra

    known = client.get_experiment_by_name(options.experiment)
    experiment = known.experiment_id if known else client.create_experiment(options.experiment)
    name, decision = options.run_dir.resolve().name, profile.decision
    run_id = str(client.create_run(experiment, run_name=name).info.run_id)
    said = {
        "verdict": decision.verdict,
        "reason": decision.reason,
        "slo": str(decision.slo.slo),
        "digest": profile.digest,
    }
    params = [Param(key, str(one)[:MOST_CHARACTERS]) for key, one in profile.engine.items()]
    tags = [RunTag(f"tuner.{key}", text) for key, text in said.items()]
    client.log_batch(run_id, params=params, tags=tags)
    at_ms = int(datetime.fromisoformat(profile.provenance.created).timestamp() * 1e3)
    metrics = [
        Metric(key, float(value), at_ms, int(row["max_num_seqs"] or 0))
        for row in curve
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + MOST_METRICS])
    client.log_artifact(run_id, str(options.run_dir / "profile.yaml"))
    client.set_terminated(run_id)
    return run_id
