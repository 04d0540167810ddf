"""One sweep of each machine, which all tests of a process share."""

from functools import cache

import pytest

from tests.outside.machines.swept import Sweep, Swept, sweep


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    @cache
    def go(name: str) -> Sweep:
        folder = tmp_path_factory.mktemp(name)
        return Sweep(folder, sweep(folder, name))

    return go
