from pathlib import Path

import pytest

from tuner.engines.sim.world import read_world, step_law
from tuner.errors import InputError


def world_file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_numbers_may_be_written_as_people_write_them(tmp_path: Path) -> None:
    world = read_world(world_file(tmp_path, "step: {a: 2e-2, d: .5E-6, b: 1}\nseed: +7\n"))
    assert (world.step.a, world.step.d, world.step.b, world.seed) == (0.02, 5e-7, 1, 7)


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("step: {a: 0.02, e: 1}", ": step: ", "unknown field `e`"),
        ("kv:\n  blocks: 10\n  size: 3", ": kv: ", "unknown field `size`"),
        ("speed: 3", ": ", "unknown field `speed`"),
        ("name: 3", ": name", "str"),
        ("step: {a: fast}", "step: a", "float"),
        ("step: {a: .nan}", "step: a", "float"),
        ("step: {a: 1e999}", "step: a", "out of range"),
        ("step: {a: [0.02]}", "step: a", "array"),
        ("step: {pad: 2}", "step: pad", "bool"),
        ("budget: 10.5", "budget", "int"),
        ("kv: {blocks: 99999999999}", "kv: blocks", "<="),
        ("kv: 12", "kv", "int"),
        ("step: {a: 0}", "step", "takes no time"),
        ("seed: 1\nseed: 2", ":2", "twice"),
    ],
)
def test_what_is_not_a_world_is_refused_in_one_line_with_its_place(
    tmp_path: Path, text: str, place: str, what: str
) -> None:
    path = world_file(tmp_path, text)
    with pytest.raises(InputError) as refusal:
        read_world(path)
    message = str(refusal.value)
    assert message.startswith(str(path))
    assert place in message
    assert what in message
    assert "\n" not in message + refusal.value.hint


def test_the_law_is_the_formula_of_the_world(tmp_path: Path) -> None:
    text = "step: {a: 1, b: 2, n0: 2, h: 10, c: 3, c2: 4, p0: 5, d: 6}"
    law = step_law(read_world(world_file(tmp_path, text)).step, 4)
    assert law.decode_s.tolist() == [1, 3, 5, 17, 29]
    assert law[1:] == (3, 4, 5, 6, 0)
