vllm serve acme/translator-7b \
  --max-num-seqs 16 \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}' \
  --compilation-config '{"level": 3}'
