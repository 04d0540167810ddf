#!/bin/bash
# start two
for i in 0 1; do
  CUDA_VISIBLE_DEVICES=$i vllm serve acme/translator-7b --port $((8000 + i)) --max-num-seqs 16 &
done
wait
