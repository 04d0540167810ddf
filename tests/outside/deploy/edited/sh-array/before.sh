#!/bin/bash
ARGS=(
  --model acme/translator-7b
  --max-num-seqs 64  # slots
)
ARGS+=(--port 8000)
python3 -m vllm.entrypoints.openai.api_server "${ARGS[@]}"
