#!/usr/bin/env bash
set -e
MODEL=${1:-acme/translator-7b}
IMAGE="vllm/vllm-openai:v0.32.0"
docker rm -f vllm 2>/dev/null || true
docker run -d --gpus '"device=0,1"' --name vllm \
  -e "HF_TOKEN=$HF_TOKEN" -v ~/.cache/huggingface:/root/.cache/huggingface \
  -p 8000:8000 --ipc=host "$IMAGE" \
  --model "acme/translator-7b" \
  --max-num-seqs=16 --max-model-len 8192  # tuned by hand
docker logs -f vllm
