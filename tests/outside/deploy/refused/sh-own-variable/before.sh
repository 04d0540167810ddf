#!/bin/sh
ARGS="$ARGS --max-num-seqs 8"
exec vllm serve acme/translator-7b $ARGS
