#!/bin/bash
vllm serve acme/translator-7b --max-num-seqs "${SLOTS:-16}"
