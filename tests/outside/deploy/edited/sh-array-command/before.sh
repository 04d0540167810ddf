#!/bin/bash
source /opt/venv/bin/activate
CMD=(vllm serve acme/translator-7b
  --host 0.0.0.0
  --max-num-seqs 256
)
if [ -n "$API_KEY" ]; then
  CMD+=(--api-key "$API_KEY")
fi
exec "${CMD[@]}"
