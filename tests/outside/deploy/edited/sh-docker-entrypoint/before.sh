#!/bin/bash
docker run --gpus all --entrypoint python3 vllm/vllm-openai:v0.32.0 -m vllm.entrypoints.openai.api_server --model acme/translator-7b --max-num-seqs 256
