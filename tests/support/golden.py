"""Compare text with a file under tests/golden; ``pytest --update-golden`` rewrites it."""

from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "golden"


def check(name: str, text: str, *, update: bool) -> None:
    path = FOLDER / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    assert text == expected, f"{path} differs: pytest --update-golden, then read the diff"
