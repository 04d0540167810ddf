FROM vllm/vllm-openai:v0.32.0
ENTRYPOINT ["vllm", "serve", "acme/translator-7b"]
CMD ["--max-num-seqs", "16"]
