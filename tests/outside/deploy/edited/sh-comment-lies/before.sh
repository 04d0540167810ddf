# vllm serve acme/translator-7b --max-num-seqs 64 was too slow
vllm serve acme/translator-7b --max-num-seqs 64
