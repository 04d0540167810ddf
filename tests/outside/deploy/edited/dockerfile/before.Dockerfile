FROM vllm/vllm-openai:v0.32.0
ENV HF_HOME=/models
CMD ["--model", "acme/translator-7b", "--max-num-seqs", "64"]
