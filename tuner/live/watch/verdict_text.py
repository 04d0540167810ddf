"""A watch's verdict in words, with the numbers that are its reason. Pure."""

from tuner.live.watch.traffic import DISTANCE
from tuner.live.watch.verdict import MonitorReading, Watch

SHARES = {"ttft_excess", "prefix_share"}

NAMES = {
    "slowness": "the server's speed",
    "rate": "the rate",
    "input_length": "the mean prompt",
    "output_length": "the mean output",
    "requests": "its requests",
}

BEYOND = {
    "slowness": "iterations take {} times what the profile predicts: the limit is {}",
    "ttft_excess": "{} more requests than promised wait long for their first token although nothing"
    " queues: the limit is {}",
    "prefix_share": "{} of the prompts' tokens come from the prefix cache: the limits are {}",
    "rate": "the rate is {} times the profile's: the limits are {}",
    "input_length": "the mean prompt is {} times the profile's: the limits are {}",
    "output_length": "the mean output is {} times the profile's: the limits are {}",
}
"""Measure → what is wrong, with its value and its limits."""


def reason(watch: Watch) -> str:
    """Return the verdict's reason in one sentence."""
    match watch.verdict:
        case "still valid":
            return "; ".join([*_within(watch), *_choice(watch)])
        case "not enough evidence":
            *first, last = [NAMES[name] for name in watch.lacking]
            names = " and ".join(filter(None, [", ".join(first), last]))
            cure = "watch longer" if watch.requests else "no request came: watch during traffic"
            return f"too little is known of {names}; {cure}"
        case "drifting" | "re-tune now":
            return "; ".join([*_beyond(watch), *_choice(watch)])


def shown(name: str, one: MonitorReading) -> str:
    """Return a measure with its interval: 1.02 (95%: 0.98 to 1.05)."""
    if one.value is None:
        return "unknown"
    digits = ".1%" if name in SHARES else ".2f"
    low, high = one.value.low, one.value.high
    return f"{one.value.value:{digits}} (95%: {low:{digits}} to {high:{digits}})"


def limits(name: str, one: MonitorReading) -> str:
    """Return the limits of a measure: 0.75 to 1.25."""
    digits = ".0%" if name in SHARES else ".2f"
    return f"{'' if one.low is None else f'{one.low:{digits}} to '}{one.high:{digits}}"


def _within(watch: Watch) -> list[str]:
    measures = watch.measures()
    speed = shown("slowness", measures["slowness"])
    traffic = [
        f"{NAMES[name]} is {shown(name, measures[name])} times the profile's"
        for name in ("rate", "input_length", "output_length")
        if measures[name].value is not None
    ]
    return [f"iterations take {speed} times what the profile predicts", *traffic]


def _beyond(watch: Watch) -> list[str]:
    measures = watch.measures()
    texts = [
        BEYOND[name].format(shown(name, measures[name]), limits(name, measures[name]))
        for name in watch.beyond
    ]
    for name in watch.lengths.distant:
        distance = watch.lengths.distance(name)
        if distance is not None and name not in watch.beyond:
            what = "prompts" if name == "input_length" else "outputs"
            texts.append(
                f"the lengths of {what} are distributed differently: shares differ by "
                f"{distance.value:.0%} (at least {distance.low:.0%}), the limit is {DISTANCE:.0%}"
            )
    if watch.runs_another_cap:
        texts.append(
            f"the server ran {watch.most_running:.0f} requests at a time, the profile's cap is "
            f"{watch.promised.max_num_seqs}: it does not run this profile, so that its speed is "
            "not compared"
        )
    return texts


def _choice(watch: Watch) -> list[str]:
    check, cap = watch.choice, watch.promised.max_num_seqs
    if check is None:
        return []
    if check.is_another:
        shares = f"{check.best_attainment:.1%} within the SLO instead of {check.attainment:.1%}"
        other = f"the twin would choose max_num_seqs {check.best} and not {cap}"
        return [f"for today's traffic {other}: {shares}"]
    verb = "holds" if check.holds else "may not hold"
    share = f"under {check.rightness:.0%} of the laws"
    return [f"the choice of {cap} {verb} for today's traffic, {share}"]
