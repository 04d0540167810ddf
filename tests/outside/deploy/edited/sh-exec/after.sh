#!/bin/sh
exec vllm serve acme/translator-7b --max-num-seqs 16
