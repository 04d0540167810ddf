#!/bin/sh
docker run --rm --entrypoint bash vllm/vllm-openai:v0.32.0 -c "pip install x && vllm serve acme/translator-7b --max-num-seqs 64"
