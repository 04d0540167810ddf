"""Refuses a folder that has settings for numba, which compiles for tuner."""

from pathlib import Path

from tuner.errors import InputError

NUMBAS_OWN = Path(".numba_config.yaml")
"""Numba obeys it wherever it is run: in a stranger's folder it could have any file written over."""


def refuse_config_of_folder() -> None:
    """Raise InputError where numba would obey the folder that tuner is run in."""
    if NUMBAS_OWN.exists():
        raise InputError(
            f"{NUMBAS_OWN}: would be obeyed by numba, which compiles for tuner",
            hint="Remove it if it is not yours, or set its values as NUMBA_… in the environment.",
        )
