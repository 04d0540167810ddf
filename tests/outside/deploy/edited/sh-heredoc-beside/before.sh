cat > motd <<EOF
vllm serve other --max-num-seqs 64
EOF
vllm serve acme/translator-7b --max-num-seqs 64
