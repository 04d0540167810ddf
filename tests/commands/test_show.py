"""``tuner show --flags`` prints what is pasted where ``tuner apply`` does not edit."""

import shlex
from pathlib import Path

from tests.commands.apply.test_apply import Tuner, tuner  # noqa: F401 - the fixture
from tests.support.profiles import ENGINE, profile
from tuner.profile.profile import save


def test_the_flags_are_one_line_for_a_shell_without_the_model(tuner: Tuner) -> None:  # noqa: F811
    engine = {**ENGINE, "max_num_seqs": 16, "worker_cls": "a.B"}
    save(profile(engine=engine), Path("p.yaml"))
    done = tuner("show", "p.yaml", "--flags")
    assert (done.exit_code, done.err, done.out.count("\n")) == (0, "", 1)
    words = shlex.split(done.out)
    assert words[0] == "--max-num-seqs=16"
    assert [word for word in words if word.startswith(("--model", "--worker"))] == []


def test_a_refused_script_gets_the_same_flags(tuner: Tuner) -> None:  # noqa: F811
    Path("serve.sh").write_text("#!/bin/sh\nexec vllm serve m --max-num-seqs 64\n")
    done = tuner("apply", "profile.yaml", "serve.sh")
    assert done.exit_code == 3
    flags = tuner("show", "profile.yaml", "--flags").out
    assert done.err.splitlines() == [
        "Error: serve.sh:2: is a shell script, which is not edited",
        f"Put these flags behind vllm serve, in place of those that it has: {flags.strip()}",
    ]
