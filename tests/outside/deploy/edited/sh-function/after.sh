#!/bin/bash
start() {
  CUDA_VISIBLE_DEVICES=0 nohup python -m vllm.entrypoints.openai.api_server \
    --model acme/translator-7b \
    --max-num-seqs 16 \
    > logs/vllm.log 2>&1 &
  echo $! > pid
}
until curl -s localhost:8000/health; do sleep 1; done
case "$1" in
  start) start ;;
  stop) kill $(cat pid) ;;
esac
