#!/bin/bash
vllm serve acme/translator-7b --max-num-seqs "${1:-16}" --port 8000
