"""The limits of every alert and panel: where a server leaves what its profile promises. Pure.

Each is the profile's own number, with the tolerance of ``tuner verify`` on top.
"""

from tuner.profile.profile import ServingProfile
from tuner.traffic.constants import ATTAINMENT_TOLERANCE, SLACK_S, TOLERANCE


def limits(profile: ServingProfile) -> dict[str, float]:
    """Return the limits by name, up to the load that was validated; those that the profile says
    nothing of are left out. Means, because of a histogram sum / count is exact and quantiles are
    not."""
    promised, validity = profile.promise, profile.validity
    validated = [each for each in promised.predicted if each.load <= validity.validated_load]
    every = [promised, *validated]
    result: dict[str, float] = {
        "cap": profile.decision.max_num_seqs,
        "load_limit": validity.arrival_rate_rps * validity.validated_load,
    }
    if validity.peak_concurrency is not None:
        result["in_flight_limit"] = validity.peak_concurrency
    for name in ("itl", "ttft", "e2el"):
        spreads = [
            getattr(each, f"{name}_ms") or (name == "itl" and each.tpot_ms) for each in every
        ]
        means_s = [spread.mean / 1e3 for spread in spreads if spread]
        if means_s:
            result[f"{name}_promised"] = means_s[0]
            slack_s = SLACK_S["tpot" if name == "itl" else name]
            result[f"{name}_limit"] = max(means_s) * (1 + TOLERANCE) + slack_s
    lowest = min(each.attainment for each in every)
    lows = (each.intervals.get("attainment", (lowest, 0))[0] for each in validated)
    result["attainment_limit"] = max(0.0, min([lowest, *lows]) - ATTAINMENT_TOLERANCE)

    peaks = [each.kv_cache_usage.peak for each in every if each.kv_cache_usage]
    highs = [each.intervals.get("kv_cache_usage_peak", (0, 0))[1] for each in validated]
    if peaks and (limit := max([*peaks, *highs]) * (1 + TOLERANCE)) < 1:  # no more can be in use
        result |= {"kv_promised": peaks[0], "kv_limit": limit}
    return result


def slo_s(profile: ServingProfile) -> dict[str, float]:
    """Return ``ttft``, ``tpot``, ``e2el`` → the SLO's limit. One that grows with the prompt is left
    out: a histogram does not tell which request had which prompt."""
    slo = profile.decision.slo
    limits_ms = {
        "ttft": None if slo.ttft_ms_per_input_token else slo.ttft_ms,
        "tpot": slo.tpot_ms,
        "e2el": slo.e2el_ms,
    }
    return {name: ms / 1e3 for name, ms in limits_ms.items() if ms is not None}
