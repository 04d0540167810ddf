#!/bin/bash
CFG='{"level": 3, "mode": "a b"}'
EXTRA=""
NAME="Ann's server"
declare -a FLAGS=()
FLAGS+=("--max-num-seqs" "16")
echo "$NAME" starts
exec vllm serve acme/translator-7b --compilation-config "$CFG" $EXTRA "${FLAGS[@]}" \
  --chat-template "$(cat "chat.jinja")"
