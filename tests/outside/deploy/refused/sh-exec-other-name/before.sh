#!/bin/sh
exec -a vllm serve acme/translator-7b --max-num-seqs 8
