#!/bin/bash
vllm serve acme/translator-7b --max-num-seqs "${1:-256}" --port 8000
