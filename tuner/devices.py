"""The hardware: what it is, and how busy."""

from tuner.engines.seam import ArgumentValue


def device_facts() -> dict[str, ArgumentValue]:
    return {}
