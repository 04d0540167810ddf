vllm serve acme/translator-7b --max-num-seqs 64 &
vllm serve acme/translator-7b --port 8001 &
