tmux new-session -d -s vllm "vllm serve acme/translator-7b --max-num-seqs 16"
