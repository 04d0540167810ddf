#!/bin/bash
MODEL="acme/translator-7b"
MAX_NUM_SEQS=16   # slots
PORT=8000
vllm serve "$MODEL" --port "$PORT" --max-num-seqs "$MAX_NUM_SEQS"
