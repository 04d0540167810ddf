"""What nobody can edit safely in a deployment's file, and what looks like it and can be."""

from collections.abc import Callable

import pytest

from tests.support.deployments import RAY
from tests.support.targets import kind_of, platform, read, write
from tuner.engines.seam import ArgumentValue
from tuner.errors import NotVllmError, TargetError, TunerError, UsageError

SEQS: dict[str, ArgumentValue] = {"max_num_seqs": 16}


def pod(container: str) -> str:
    return f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n{container}"


def shell(script: str) -> str:
    lines = "".join(f"      {line}\n" for line in script.split("\n"))
    return pod(f"  - name: v\n    command: [sh, -c]\n    args:\n    - |\n{lines}")


def compose(service: str) -> str:
    return f"services:\n  v:\n{service}"


def unit(command: str) -> str:
    return f"[Service]\nExecStart={command}\n"


STACK = """\
servingEngineSpec:
  modelSpec:
  - name: a
    modelURL: m
%s"""

REFUSED: list[tuple[str, str, str]] = [
    # In a shell's script
    ("kubernetes", shell("vllm serve m $MORE"), "f:9: $MORE may hold more flags"),
    ("kubernetes", shell('vllm serve m "$@"'), "f:9: $@ may hold more flags"),
    ("kubernetes", shell("vllm serve m $(cat flags)"), "f:9: $(cat flags) may hold more flags"),
    (
        "kubernetes",
        shell('vllm serve m --max-num-seqs "$N"'),
        "f:9: max_num_seqs is decided elsewhere: $N",
    ),
    ("kubernetes", shell("vllm serve a & vllm serve b"), "f:8: the script has 2 vllm serve"),
    ("kubernetes", shell("eval vllm-serve"), "f:8: the script has no vllm serve"),
    (
        "kubernetes",
        shell("vllm serve 'm"),
        "f:8: the script cannot be understood: a ' is not closed: \"'m\\n\"",
    ),
    (
        "kubernetes",
        shell("vllm serve m <<X\nX"),
        "f:8: the script cannot be understood: it has a here-document",
    ),
    (
        "kubernetes",
        pod("  - name: v\n    command: [bash, run-vllm.sh]\n"),
        "f:6: a shell without -c and a script",
    ),
    (
        "compose",
        compose("    command: sh -c 'vllm serve '\"'m'\"\n"),
        "f:3: the script is quoted in pieces",
    ),
    # In a container
    (
        "kubernetes",
        pod("  - name: v\n    image: vllm/vllm-openai\n    args: --max-num-seqs=8\n"),
        "f:7: args is no list",
    ),
    (
        "kubernetes",
        pod("  - name: v\n    image: a/vllm-openai\n    command: [/run.sh]\n    args: [x]\n"),
        "f:5: p/v is not seen to run vLLM: it starts /run.sh x",
    ),
    (
        "kubernetes",
        "x: &x true\n" + pod("  - {name: v, image: vllm/vllm-openai, tty: *x}\n"),
        "f:6: args cannot be added in these braces",
    ),
    (
        "kubernetes",
        pod("  - name: v\n    image: vllm/vllm-openai\n    args: &a [m]\n    x: *a\n"),
        "f:7: stands behind an anchor that is used in several places",
    ),
    (
        "kubernetes",
        pod("  - name: v\n    image: nginx\n"),
        "f:5: p/v is not seen to run vLLM: it starts what the image nginx starts",
    ),
    ("kubernetes", "kind: Service\n", "f: there is no container in it"),
    (
        "kubernetes",
        "kind: Pod\n\tspec: x\n",
        "f:2: found character '\\t' that cannot start any token",
    ),
    # In a Compose file
    (
        "compose",
        compose("    command: vllm serve m; rm x\n"),
        "f:3: cannot be understood: Compose knows no ';'",
    ),
    (
        "compose",
        compose("    command: vllm serve m --max-num-seqs ${N}\n"),
        "f:3: max_num_seqs is decided elsewhere: ${N}",
    ),
    ("compose", compose("    command: vllm serve m $MORE\n"), "f:3: $MORE may hold more flags"),
    (
        "compose",
        (
            "x: &x {command: [vllm, serve, m]}\nservices:\n  v:\n    <<: *x\n"
            "    image: a/vllm-openai\n"
        ),
        "f:4: v takes its command from an anchor",
    ),
    (
        "compose",
        compose("    image: vllm/vllm-openai\n    extends: {service: b}\n"),
        "f:3: v has no command here, and a list written here replaces the whole one elsewhere",
    ),
    # In a patch
    (
        "kustomize",
        pod("  - name: vllm\n    resources: {}\n").replace("name: p", "name: vllm"),
        (
            "f:5: vllm/vllm has no args here, and a list written here replaces the whole one of "
            "the base"
        ),
    ),
    (
        "kustomize",
        "- op: add\n  path: /spec/containers/0/args/-\n  value: --max-num-seqs=8\n",
        "f:1: /spec/containers/0/args/- changes a single argument",
    ),
    (
        "kustomize",
        "patches: [{path: a.yaml}, {path: b.yaml}]\n",
        "f:1: is a kustomization, and the arguments are in its patches",
    ),
    # In the values of a chart
    (
        "helm-production-stack",
        (
            "servingEngineSpec:\n  modelSpec:\n  - name: a\n    vllmConfig:\n      maxNumSeqs: 8\n"
            "      extraArgs: [--max-num-seqs=9]\n"
        ),
        "f:5: maxNumSeqs is also among extraArgs, which win",
    ),
    (
        "helm-production-stack",
        "x: &x 4\nservingEngineSpec:\n  modelSpec:\n  - name: a\n    vllmConfig: {maxLoras: *x}\n",
        "f:5: maxNumSeqs cannot be added in these braces",
    ),
    # In a unit
    ("systemd", unit("/bin/vllm serve m $ARGS"), "f:2: $ARGS may hold more flags"),
    (
        "systemd",
        unit("/bin/vllm serve m --max-num-seqs ${N}"),
        "f:2: max_num_seqs is decided elsewhere: ${N}",
    ),
    (
        "systemd",
        unit("/bin/vllm serve m --max-num-seqs %i"),
        "f:2: max_num_seqs is decided elsewhere: %i",
    ),
    ("systemd", unit("/bin/true"), "f:2: ExecStart is not seen to start vLLM: /bin/true"),
    (
        "systemd",
        unit('/bin/vllm serve "m'),
        "f:2: ExecStart cannot be understood: a \" is not closed: '\"m'",
    ),
    (
        "systemd",
        unit("/bin/vllm serve a") + "ExecStart=/bin/vllm serve b\n",
        "f:3: a second ExecStart",
    ),
    ("systemd", "[Service]\nUser=a\n", "f: has no ExecStart to edit"),
    # In a file of variables
    (
        "env",
        "VLLM_ARGS='--max-num-seqs=1\"\n",
        "f:1: the value of VLLM_ARGS cannot be understood: its quotes do not match",
    ),
    ("env", "VLLM_ARGS=--max-num-seqs=1\nVLLM_ARGS=b\n", "f:2: VLLM_ARGS is set a second time"),
    (
        "env",
        "VLLM_ARGS=--max-num-seqs=1 # mine\n",
        (
            "f:1: the value of VLLM_ARGS cannot be understood: a shell takes what follows # for a "
            "comment, systemd does not"
        ),
    ),
    (
        "env",
        "MAX_NUM_SEQS=8\n",
        "f:1: MAX_NUM_SEQS looks like max_num_seqs, and nothing here says who reads it",
    ),
    ("env", "export A=1 VLLM_ARGS=m\n", "f:1: VLLM_ARGS is set in a way that tuner does not know"),
    ("env", "VLLM_ARGS+=' -x'\n", "f:1: VLLM_ARGS is set in a way that tuner does not know"),
    ("env", "\ufeffVLLM_ARGS=m\n", "f:1: VLLM_ARGS is set in a way that tuner does not know"),
    # Templates, where a text is split at blanks
    (
        "env",
        'VLLM_ARGS="m --max-num-seqs {{ seqs }}"\n',
        "f:1: max_num_seqs is decided elsewhere: {{ seqs }}",
    ),
    ("env", 'VLLM_ARGS="m --max-num-seqs=1 {{ more }}"\n', "f:1: {{ more }} may hold more flags"),
    (
        "compose",
        compose('    command: "m --max-num-seqs {{ seqs }}"\n    image: vllm/vllm-openai\n'),
        "f:3: max_num_seqs is decided elsewhere: {{ seqs }}",
    ),
    (
        "systemd",
        unit("/bin/vllm serve m --max-num-seqs {{ seqs }}"),
        "f:2: max_num_seqs is decided elsewhere: {{ seqs }}",
    ),
    (
        "vllm-config",
        'max-num-seqs: "{{ seqs }}"\n',
        "f:1: max_num_seqs is decided elsewhere: {{ seqs }}",
    ),
    ("vllm-config", "max-num-seqs: ${N}\n", "f:1: max_num_seqs is decided elsewhere: ${N}"),
    (
        "helm-production-stack",
        STACK % "    vllmConfig:\n      maxNumSeqs: '{{ seqs }}'\n",
        "f:6: max_num_seqs is decided elsewhere: {{ seqs }}",
    ),
    # Lines that only seem to go on
    (
        "compose",
        compose("    command: |\n      m \\\n      --port 8\n    image: vllm/vllm-openai\n"),
        "f:3: cannot be understood: Compose does not join lines at a backslash",
    ),
    (
        "systemd",
        unit("/bin/vllm serve m \\ \n --max-num-seqs 8"),
        "f:2: ExecStart cannot be understood: it ends in a backslash",
    ),
    (
        "systemd",
        unit("/bin/vllm serve m ; /bin/true"),
        "f:2: ExecStart holds several commands",
    ),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED)
def test_what_cannot_be_edited_safely_is_named(kind: str, text: str, message: str) -> None:
    with pytest.raises(TargetError) as problem:
        write(kind, text, SEQS)
    assert "\n" not in str(problem.value) + problem.value.hint
    assert str(problem.value) == message


ALLOWED: list[tuple[str, str, Callable[[str], str]]] = [
    (
        "kubernetes",
        shell("A=1 exec vllm serve $MODEL --port $PORT --max-num-seqs 8 >l 2>&1 &"),
        lambda text: text.replace("seqs 8", "seqs 16"),
    ),
    (
        "kubernetes",
        shell("if true; then\n  vllm serve m\nfi"),
        lambda text: text.replace("serve m", "serve m --max-num-seqs=16"),
    ),
    (
        "kubernetes",
        shell("python3 -m vllm.entrypoints.openai.api_server --max_num_seqs=8 # why"),
        lambda text: text.replace("=8", "=16"),
    ),
    (
        "kubernetes",
        shell("vllm serve m --max-num-seqs 8").replace("\n", "\r\n"),
        lambda text: text.replace("seqs 8", "seqs 16"),
    ),
    (
        "kubernetes",
        pod("  - name: v\n    image: vllm/vllm-openai\n    args: &a [m]\n"),
        lambda text: text.replace("[m]", "[m, --max-num-seqs=16]"),
    ),
    (
        "kubernetes",
        pod(
            "  - name: v\n    image: a/vllm-openai\n    args: [--max-num-seqs=8]\n"
            "  initContainers:\n"
            "  - {name: w, image: vllm/vllm-openai, args: [--max-num-seqs=8]}\n"
        ),
        lambda text: text.replace("=8", "=16", 1),
    ),
    (
        "kubernetes",
        pod(
            "  - name: v\n    command: [sh, -c, 'vllm serve m $VLLM_ARGS']\n"
            "    env:\n    - name: VLLM_ARGS\n      value: ''\n"
        ),
        lambda text: text.replace("value: ''", "value: '--max-num-seqs=16'"),
    ),
    (
        "compose",
        compose("    image: vllm/vllm-openai\n    command: --api-key $$X m\n"),
        lambda text: text.replace("$$X m", "$$X m --max-num-seqs 16"),
    ),
    (
        "compose",
        compose("    entrypoint: bash -lc\n    command: ['vllm serve m --max-num-seqs=8']\n"),
        lambda text: text.replace("=8", "=16"),
    ),
    (
        "compose",
        compose(
            '    image: vllm/vllm-openai\n    command: sh -c "vllm serve m $$VLLM_ARGS"\n'
            "    environment:\n    - VLLM_ARGS=--max-num-seqs=8\n"
        ),
        lambda text: text.replace("=8", "=16"),
    ),
    (
        "kserve",
        (
            "kind: ServingRuntime\nspec:\n  containers:\n  - name: k\n    image: vllm/vllm-openai\n"
            "    args: ['--served-model-name={{.Name}}', --max-num-seqs=8]\n"
        ),
        lambda text: text.replace("=8", "=16"),
    ),
    (
        "helm-production-stack",
        (
            "stack:\n  servingEngineSpec:\n    modelSpec:\n    - name: a\n      vllmConfig:\n"
            '        maxNumSeqs: "8"\n'
        ),
        lambda text: text.replace('"8"', "16"),
    ),
    (
        "systemd",
        "[Service]\nExecStart=/bin/vllm serve old\nExecStart=\nExecStart=-/bin/vllm serve m\n",
        lambda text: text.replace("serve m", "serve m --max-num-seqs=16"),
    ),
    (
        "systemd",
        unit("/usr/bin/docker run --rm vllm/vllm-openai:v0.32.0 --max-num-seqs=8"),
        lambda text: text.replace("=8", "=16"),
    ),
    (
        "systemd",
        unit("/bin/sh -c 'exec vllm serve m --max-num-seqs 8'"),
        lambda text: text.replace("seqs 8", "seqs 16"),
    ),
    ("env", "export VLLM_EXTRA_ARGS='--max-num-seqs 8'\n", lambda text: text.replace("8", "16")),
]


LLM = """\
kind: LLMInferenceService
metadata: {name: q}
spec:
  model: {uri: "hf://m"}
  template:
    containers:
    - name: main
%s"""
ADDED = [
    (
        "kserve",
        LLM % "      image: vllm/vllm-openai\n",
        "      env:\n      - name: VLLM_ADDITIONAL_ARGS\n        value: --max-num-seqs=16\n",
    ),
    (
        "kserve",
        LLM % "      env:\n      - {name: A, value: b}\n",
        "      - name: VLLM_ADDITIONAL_ARGS\n        value: --max-num-seqs=16\n",
    ),
    ("kserve", LLM % "      args: [--port=1]\n", None),
    ("helm-production-stack", STACK % "", "    vllmConfig:\n      maxNumSeqs: 16\n"),
    (
        "helm-production-stack",
        STACK % "    vllmConfig:\n      dtype: half\n",
        "      maxNumSeqs: 16\n",
    ),
    (
        "helm-llm-d",
        (
            "a:\n  prefill:\n    containers:\n"
            "    - modelCommand: vllmServe\n      image: vllm/vllm-openai\n"
        ),
        "      args:\n      - --max-num-seqs=16\n",
    ),
    (
        "kubernetes",
        (
            "kind: List\nitems:\n- kind: Pod\n  spec:\n    containers:\n"
            "    - image: vllm/vllm-openai\n"
        ),
        "      args:\n      - --max-num-seqs=16\n",
    ),
    (
        "kubernetes",
        pod("  - image: vllm/vllm-openai\n    args:\n    - m\n    - >-\n      --a=b\n"),
        "    - --max-num-seqs=16\n",
    ),
    (
        "kubernetes",
        pod("  - image: vllm/vllm-openai\n    args: &x\n    - m"),
        "\n    - --max-num-seqs=16",
    ),
    (
        "kustomize",
        "- op: add\n  path: /spec/containers/0/command\n  value: [vllm, serve, m]\n",
        None,
    ),
    ("systemd", unit("/bin/vllm serve m --chat-template '\\x61 b'"), None),
]
"""Kind, text, and what is added at its end; None: within a line."""


@pytest.mark.parametrize(("kind", "text", "end"), ADDED)
def test_what_is_not_there_yet_is_added_where_it_is_looked_for(
    kind: str, text: str, end: str | None
) -> None:
    result = write(kind, text, SEQS)
    if end is None:
        assert result.count("\n") == text.count("\n")
        assert "--max-num-seqs" in result
    else:
        assert result == text + end
    assert write(kind, result, SEQS) == result
    assert read(kind, result)["max_num_seqs"].value == 16


@pytest.mark.parametrize(
    ("kind", "text", "stated"),
    [
        ("kserve", LLM % "      image: vllm/vllm-openai\n", {"model": "m"}),
        (
            "kserve",
            (
                "kind: InferenceService\nspec:\n  predictor:\n    model:\n      runtime: my-vllm\n"
                "      modelFormat: {name: vLLM}\n"
                "      storageUri: pvc://m\n"
            ),
            {"model": "pvc://m"},
        ),
        (
            "helm-production-stack",
            STACK % "    vllmConfig: {maxModelLen: '8'}\n",
            {"model": "m", "max_model_len": 8, "enable_prefix_caching": False},
        ),
        (
            "helm-llm-d",
            (
                "modelArtifacts: {name: a/b, uri: 'hf://{{ .Values.modelArtifacts.name }}'}\n"
                "decode:\n  parallelism: {tensor: 2}\n  containers:\n"
                "  - modelCommand: imageDefault\n    image: vllm/vllm-openai\n"
            ),
            {"model": "a/b", "tensor_parallel_size": 2},
        ),
        (
            "helm-llm-d",
            "decode:\n  containers:\n  - modelCommand: vllmServe\n",
            {"tensor_parallel_size": 1},
        ),
    ],
)
def test_what_stands_outside_the_command_line_is_read(
    kind: str, text: str, stated: dict[str, ArgumentValue]
) -> None:
    found = read(kind, text)
    assert {name: one.value for name, one in found.items()} == stated


@pytest.mark.parametrize(
    ("kind", "text", "vllm", "gpu"),
    [
        (
            "kubernetes",
            pod(
                "  - image: vllm/vllm-openai:v0.32.0\n    args: [m]\n"
                "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}\n"
            ),
            "0.32.0",
            "NVIDIA-H200",
        ),
        (
            "kubernetes",
            pod("  - image: lmcache/vllm-openai:2025-05-27-v1\n    args: [m]\n"),
            None,
            None,
        ),
        (
            "kubernetes",
            pod("  - image: my.io/a/vllm-openai:0.9.1-rc2\n    args: [m]\n"),
            "0.9.1rc2",
            None,
        ),
        (
            "helm-production-stack",
            STACK % "    repository: vllm/vllm-openai\n    tag: v0.9.1\n",
            "0.9.1",
            None,
        ),
        ("systemd", unit("/bin/vllm serve m"), None, None),
        ("env", "VLLM_ARGS=--max-num-seqs=8\n", None, None),
    ],
)
def test_where_the_server_runs_is_read_from_image_and_node(
    kind: str, text: str, vllm: str | None, gpu: str | None
) -> None:
    found = platform(kind, text)
    assert (found.vllm and found.vllm.value, found.gpu and found.gpu.value) == (vllm, gpu)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.yaml", "", "vllm-config"),
        ("a.yaml", "model: m\n", "vllm-config"),
        ("a.yaml", "services: {v: {image: x}}\n", "compose"),
        ("a.yaml", "kind: Pod\nspec: {containers: [{image: x}]}\n", "kubernetes"),
        ("a.yaml", "kind: Pod\nspec: {containers: [{name: x}]}\n", "kustomize"),
        ("a.yaml", "resources: [b.yaml]\n", "kustomize"),
        ("a.yaml", "[{op: add}]\n", "kustomize"),
        (
            "a.yaml",
            "apiVersion: serving.kserve.io/v1\nkind: ServingRuntime\n---\nkind: Pod\n",
            "kserve",
        ),
        ("a.yaml", "sub: {servingEngineSpec: {}}\n", "helm-production-stack"),
        ("a.yaml", "decode: {containers: [{name: x}]}\n", "helm-llm-d"),
        ("v.service", "", "systemd"),
        ("v.service.d/a.conf", "", "systemd"),
        (".env", "", "env"),
        (".env.prod", "", "env"),
        ("a.env", "", "env"),
    ],
)
def test_the_kind_is_told_by_name_and_content(name: str, text: str, kind: str) -> None:
    assert kind == kind_of(name, text).NAME


def test_documents_of_no_known_kind_are_not_taken_for_a_config() -> None:
    with pytest.raises(TargetError, match="holds 2 documents of no known kind"):
        kind_of("a.yaml", "a: 1\n---\nb: 2\n")


@pytest.mark.parametrize(("kind", "text", "edit"), ALLOWED)
def test_only_the_value_changes(kind: str, text: str, edit: Callable[[str], str]) -> None:
    result = write(kind, text, SEQS)
    assert result == edit(text)
    assert result != text
    assert write(kind, result, SEQS) == result


@pytest.mark.parametrize(
    ("kind", "text", "hint"),
    [
        (
            "kubernetes",
            pod("  - {name: a, image: vllm/vllm-openai}\n  - {name: b, image: x/vllm-openai}\n"),
            "--container NAME, of p/a, p/b.",
        ),
        (
            "env",
            "VLLM_ARGS=--max-num-seqs=1\nVLLM_EXTRA_ARGS=--max-num-seqs=1\n",
            "--container NAME, of VLLM_ARGS, VLLM_EXTRA_ARGS.",
        ),
        (
            "helm-production-stack",
            "servingEngineSpec: {modelSpec: [{name: a}, {name: b}]}\n",
            "--container NAME, of a, b.",
        ),
    ],
)
def test_which_one_is_asked(kind: str, text: str, hint: str) -> None:
    with pytest.raises(UsageError) as problem:
        read(kind, text)
    assert problem.value.hint == hint


def test_a_name_that_two_containers_share_is_told_apart_by_the_workload() -> None:
    one = "kind: Deployment\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [%s]}}}\n"
    server = "{name: v, image: vllm/vllm-openai, args: [--max-num-seqs=8]}"
    text = f"{one % ('a', server)}---\n{one % ('b', server)}"
    with pytest.raises(UsageError, match="2 containers are called 'v'"):
        write("kubernetes", text, SEQS, container="v")
    result = write("kubernetes", text, SEQS, container="b/v")
    assert result == "=16".join(text.rsplit("=8", 1))


def test_of_a_program_that_is_not_known_only_the_flags_are_vllms_and_only_on_record() -> None:
    text = pod("  - name: v\n    image: x\n    command: [/run, a, --port=1]\n")
    with pytest.raises(TargetError, match="p/v is not seen to run vLLM: it starts /run a --port=1"):
        write("kubernetes", text, SEQS)
    result = write("kubernetes", text, {"model": "m", **SEQS}, container="v", trusted=True)
    assert result == text.replace("--port=1", "--port=1, --max-num-seqs=16")


@pytest.mark.parametrize("kind", ["compose", "kubernetes", "kserve", "helm-llm-d", "systemd"])
def test_there_must_be_a_file(kind: str) -> None:
    with pytest.raises(TunerError, match="only an existing one can be edited"):
        write(kind, "", SEQS)


def test_a_chart_is_not_told_to_leave_prefix_caching_to_vllm() -> None:
    text = "servingEngineSpec:\n  modelSpec:\n  - name: a\n    vllmConfig:\n      maxNumSeqs: 8\n"
    target = "helm-production-stack"
    with pytest.raises(TargetError, match="the chart turns prefix caching on or off"):
        write(target, text, {"enable_prefix_caching": None})
    assert write(target, text, {"max_num_seqs": None, "max_model_len": 2**20}) == (
        text.replace("maxNumSeqs: 8", "extraArgs:\n      - --max-model-len=1048576")
    )


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("vllm/vllm-openai:v0.32.0-x86_64", "0.32.0"),
        ("vllm/vllm-openai:v0.32.0-cu129-ubuntu2404", "0.32.0"),
        ("vllm/vllm-openai:v0.11.0rc1", "0.11.0rc1"),
        ("vllm/vllm-openai:v0.11.0-rc.1", "0.11.0rc1"),
        ("vllm/vllm-openai:0.11.0.post1", "0.11.0.post1"),
        ("vllm/vllm-openai:v0.11.1.dev20", "0.11.1.dev20"),
        ("vllm/vllm-openai:v0.11.1rc2.dev20", "0.11.1rc2.dev20"),
        ("vllm/vllm-openai:v0.32.0@sha256:0123", "0.32.0"),
        ("host:5000/mirror/vllm-openai:v0.32.0", "0.32.0"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0", "0.32.0"),
        ("rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210", "0.11.2"),
        ("lmcache/vllm-openai:v0.3.9", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-0123abc", None),
        ("vllm/vllm-openai@sha256:0123", None),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai:v0.32.0.1", None),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("acme/llm:v0.32.0", None),
        ("", None),
    ],
)
def test_the_version_is_told_by_the_tag_or_not_at_all(image: str, version: str | None) -> None:
    text = compose(f"    image: '{image}'\n    command: vllm serve m\n")
    found = platform("compose", text)
    assert (found.vllm and found.vllm.value) == version
    assert (found.image is None) == (version is not None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "{name: v, image: a/vllm-openai}",
            "{name: v, image: a/vllm-openai, args: [--max-num-seqs=16]}",
        ),
        (
            "{name: v, image: a/vllm-openai,  # c\n    }",
            "{name: v, image: a/vllm-openai, args: [--max-num-seqs=16],  # c\n    }",
        ),
        (
            '{"name": "v", "image": "a/vllm-openai"}',
            '{"name": "v", "image": "a/vllm-openai", "args": ["--max-num-seqs=16"]}',
        ),
    ],
)
def test_keys_are_added_in_braces_in_the_style_of_the_others(before: str, after: str) -> None:
    text = write("kubernetes", pod(f"  - {before}\n"), SEQS)
    assert text == pod(f"  - {after}\n")


def test_keys_are_added_in_empty_braces() -> None:
    arguments: dict[str, ArgumentValue] = {**SEQS, "enable_prefix_caching": True}
    text = write("helm-production-stack", STACK % "    vllmConfig: {}\n", arguments, source="f")
    assert text == STACK % "    vllmConfig: {maxNumSeqs: 16, enablePrefixCaching: true}\n"


def test_a_variable_that_nobody_reads_is_not_added_beside_the_one_with_the_flags() -> None:
    text = 'SERVE_FLAGS="--max-num-seqs 1"\n'
    assert write("env", text, SEQS) == 'SERVE_FLAGS="--max-num-seqs 16"\n'
    with pytest.raises(NotVllmError, match="no variable in it is seen to hold vLLM's flags"):
        write("env", "A=1\n", SEQS)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("CronJob", "jobTemplate.spec.template.spec"),
        ("LeaderWorkerSet", "leaderWorkerTemplate.leaderTemplate.spec"),
        ("Rollout", "template.spec"),
    ],
)
def test_workloads_of_controllers_have_their_pods_elsewhere(kind: str, path: str) -> None:
    container = "{containers: [{name: v, image: a/vllm-openai, args: [m, --max-num-seqs=%d]}]}"
    for name in reversed(path.split(".")):
        container = f"{{{name}: {container}}}"
    text = f"kind: {kind}\nmetadata: {{name: w}}\nspec: {container}\n"
    target = kind_of("f.yaml", text % 1)
    assert target.NAME == "kubernetes"
    assert write(target, text % 1, SEQS) == text % 16


def test_a_patch_of_such_a_workload_is_a_patch() -> None:
    """A list that is new in a patch would replace the one of its base."""
    text = (
        "kind: CronJob\nmetadata: {name: w}\n"
        "spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: v}]}}}}}\n"
    )
    assert kind_of("f.yaml", text).NAME == "kustomize"


def test_a_document_without_content_is_a_new_config() -> None:
    assert write("vllm-config", "---\n", SEQS) == "---\nmax-num-seqs: 16\n"


def test_what_is_an_option_of_vllm_serve_has_no_place_in_ray_serve() -> None:
    with pytest.raises(TargetError, match="engine_kwargs is of the engine, and api_server_count"):
        write("ray-serve", RAY, SEQS | {"api_server_count": 2})
