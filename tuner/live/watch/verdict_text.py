"""A watch's verdict in words, with the numbers that are its reason. Pure."""

import math

from tuner.live.watch.drift import DISTANCE
from tuner.live.watch.verdict import LEAST_REQUESTS, LEAST_WINDOWS, MonitorReading, Watch

NAMES = {
    "rate": "the rate",
    "input_length": "the mean prompt",
    "output_length": "the mean output",
}


def reason(watch: Watch) -> str:
    """Return the verdict's reason in one sentence."""
    match watch.verdict:
        case "still valid":
            return "; ".join([*_within(watch), *_choice(watch)])
        case "not enough evidence":
            *first, last = _named(watch)
            names = " and ".join(filter(None, [", ".join(first), last]))
            return f"too little is known of {names}; {needed(watch)}"
        case "drifting" | "re-tune now":
            return "; ".join([*_beyond(watch), *_choice(watch)])


def server_is_why(watch: Watch) -> bool:
    """Whether the server, and not its traffic, is why the promise is broken."""
    traffic_changed = watch.distant_lengths or any(
        monitor.is_beyond for monitor in watch.traffic.monitors.values()
    )
    return watch.is_far_slower or (watch.server["slowness"].is_beyond and not traffic_changed)


def needed(watch: Watch) -> str:
    """Return what it would take to say more."""
    windows = max(LEAST_WINDOWS - watch.windows, 0)
    measures = watch.measures()
    for name in watch.lacking:
        if name == "required":
            for required in watch.required:
                if 0 < required.evidence < 1:
                    windows = max(windows, math.ceil(watch.windows * (1 / required.evidence - 1)))
            continue
        if name == "requests":
            if watch.requests:
                rate = watch.requests / max(1, watch.windows)
                windows = max(windows, math.ceil((LEAST_REQUESTS - watch.requests) / rate))
            continue
        one = measures[name]
        if one.evidence > 0:
            windows = max(windows, math.ceil(watch.windows * (1 / one.evidence - 1)))
    if not watch.requests:
        return "no request came: watch while there is traffic"
    if windows <= 0:
        return "watch on"
    return f"about {windows} more windows like these would do"


def shown(name: str, one: MonitorReading) -> str:
    """Return a measure with its interval: 1.02 (95 %: 0.98 to 1.05)."""
    if one.value is None:
        return "unknown"
    if name in {"ttft_excess", "prefix_share"}:
        return f"{one.value.value:.1%} (95 %: {one.value.low:.1%} to {one.value.high:.1%})"
    return f"{one.value.value:.2f} (95 %: {one.value.low:.2f} to {one.value.high:.2f})"


def _within(watch: Watch) -> list[str]:
    measures = watch.measures()
    said = [
        f"iterations take {shown('slowness', measures['slowness'])} times what the profile predicts"
    ]
    said += [
        f"{NAMES[name]} is {shown(name, measures[name])} times the profile's"
        for name in NAMES
        if measures[name].value is not None
    ]
    return said


def _beyond(watch: Watch) -> list[str]:
    said = [str(one) for one in watch.broken]
    for name, one in watch.measures().items():
        if one.state not in {"above", "below"}:
            continue
        since = f"since window {one.changed_at + 1}"
        if name == "slowness":
            said.append(
                f"iterations take {shown(name, one)} times what the profile predicts, {since}: the "
                f"limit is {one.high:.2f}"
            )
        elif name == "ttft_excess":
            said.append(
                f"{shown(name, one)} more requests than promised wait long for their first token "
                f"although nothing queues, {since}: the limit is {one.high:.0%}"
            )
        elif name == "prefix_share":
            said.append(
                f"{shown(name, one)} of the prompts' tokens come from the prefix cache, {since}: "
                f"the limits are {one.low or 0:.0%} and {one.high:.0%}"
            )
        else:
            said.append(
                f"{NAMES[name]} is {shown(name, one)} times the profile's, {since}: the limits "
                f"are {one.low or 0:.2f} and {one.high:.2f}"
            )
    for name in watch.distant_lengths:
        found = watch.traffic.distance(name)
        if found is not None and name not in watch.beyond:
            what = "prompts" if name == "input_length" else "outputs"
            said.append(
                f"the {what} are distributed otherwise: shares differ by {found.value:.0%} "
                f"(95 %: {found.low:.0%} to {found.high:.0%}), the limit is {DISTANCE:.0%}"
            )
    if watch.runs_another_cap:
        said.append(
            f"the server ran {watch.running.most:.0f} requests at a time, the profile's cap is "
            f"{watch.promised.max_num_seqs}: it does not run this profile"
        )
    return said


def _choice(watch: Watch) -> list[str]:
    found, cap = watch.choice, watch.promised.max_num_seqs
    if found is None:
        return []
    if found.is_another:
        shares = f"{found.best_attainment:.1%} within the SLO instead of {found.attainment:.1%}"
        what = f"the twin would choose max_num_seqs {found.best} and not {cap}"
        return [f"for today's traffic {what}: {shares}"]
    laws = f"under {found.rightness:.0%} of the laws"
    verb = "holds" if found.holds else "may not hold"
    return [f"the choice of {cap} {verb} for today's traffic, {laws}"]


def _named(watch: Watch) -> list[str]:
    unsure = [
        f"{one.requirement} ({one.seen})"
        for one in watch.required
        if one.windows and one.state == "unknown"
    ]
    names = {
        "slowness": "the server's speed",
        "requests": "its requests",
        "required": ", ".join(unsure),
        **NAMES,
    }
    return [names[name] for name in watch.lacking]
