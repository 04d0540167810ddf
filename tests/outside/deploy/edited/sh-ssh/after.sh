ssh gpu1 "docker run --gpus all vllm/vllm-openai:v0.32.0 --model acme/translator-7b --max-num-seqs 16"
