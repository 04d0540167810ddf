#!/usr/bin/env bash
set -euo pipefail

# production
docker run -d --name llm --gpus all --ipc=host \
    -v /srv/models:/models:ro \
    -p 8000:8000 \
    vllm/vllm-openai:v0.32.0 \
    --model acme/translator-7b \
    --max-num-seqs 16 \
    --gpu-memory-utilization 0.9
