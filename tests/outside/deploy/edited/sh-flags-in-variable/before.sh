#!/bin/bash
export VLLM_ARGS="--max-num-seqs 256 --max-model-len 8192"
vllm serve acme/translator-7b $VLLM_ARGS
