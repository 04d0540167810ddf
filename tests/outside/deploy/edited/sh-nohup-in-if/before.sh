#!/bin/bash
if ! curl -sf localhost:8000/health; then
  nohup bash -c "vllm serve acme/translator-7b --max-num-seqs 256 > log 2>&1" &
fi
