"""A canary of a KServe service: the profile and the share of its traffic in one edit."""

from pathlib import Path

import pytest

from tests.commands.apply.test_apply import Tuner, refused, tuner  # noqa: F401 - a fixture

SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: translator
spec:
  predictor:
    model:
      modelFormat: {name: vllm}
      args: [--model_id=m, --max-num-seqs=256, --max-num-batched-tokens=8192]  # theirs
"""
CANARY = SERVICE.replace("256", "16") + "    canaryTrafficPercent: 10\n"


@pytest.fixture
def apply(tuner: Tuner) -> Tuner:  # noqa: F811 - the fixture
    Path("isvc.yaml").write_text(SERVICE)
    return lambda *more: tuner("apply", "profile.yaml", "isvc.yaml", *more)


def engine_arguments_aside(text: str) -> str:
    """Leave out what the profile adds to the list."""
    kept = [one for one in text.split("\n") if "args:" not in one]
    return "\n".join(kept)


def test_the_next_revision_gets_the_share_and_applying_again_changes_nothing(apply: Tuner) -> None:
    done = apply("--canary", "10")
    assert done.exit_code == 0
    assert "  because --canary: its next revision gets 10 % of the traffic\n" in done.out
    once = Path("isvc.yaml").read_text()
    assert "--max-num-seqs=16" in once
    assert engine_arguments_aside(once) == engine_arguments_aside(CANARY)
    assert apply("--canary", "10").out.startswith("isvc.yaml: nothing to change")
    assert Path("isvc.yaml").read_text() == once
    assert apply().out.startswith("isvc.yaml: nothing to change")


def test_promotion_is_a_larger_share_and_can_be_taken_back(apply: Tuner, tuner: Tuner) -> None:  # noqa: F811
    apply("--canary", "10")
    canary = Path("isvc.yaml").read_text()
    apply("--canary", "100")
    assert Path("isvc.yaml").read_text() == canary.replace("Percent: 10", "Percent: 100")
    tuner("apply", "--rollback", "isvc.yaml")
    assert Path("isvc.yaml").read_text() == canary
    tuner("apply", "--rollback", "isvc.yaml")
    assert Path("isvc.yaml").read_text() == SERVICE


def test_a_share_that_comes_from_elsewhere_is_left_alone(apply: Tuner) -> None:
    text = SERVICE + "    canaryTrafficPercent: ${SHARE}\n"
    Path("isvc.yaml").write_text(text)
    assert refused(apply("--canary", "10"), 3) == (
        "isvc.yaml:10: canaryTrafficPercent is decided elsewhere: ${SHARE}"
    )
    assert Path("isvc.yaml").read_text() == text


def test_what_has_no_share_is_refused(apply: Tuner, tuner: Tuner) -> None:  # noqa: F811
    text = (
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: t}\n"
        "spec:\n  template:\n    containers:\n    - name: main\n  model: {uri: hf://m}\n"
    )
    Path("isvc.yaml").write_text(text)
    assert "canaryTrafficPercent is of an InferenceService" in refused(apply("--canary", "10"), 3)
    assert Path("isvc.yaml").read_text() == text
    for words, why in (
        (("profile.yaml", "prod.yaml"), "--canary and vllm-config exclude each other"),
        (("profile.yaml", "--to", "grafana-dashboard"), "--canary and grafana-dashboard exclude"),
        (("--rollback", "prod.yaml"), "--rollback takes the file and nothing else"),
        (("--live", "--socket", "x"), "--canary is for a file"),
    ):
        assert why in refused(tuner("apply", *words, "--canary", "0"), 2)
