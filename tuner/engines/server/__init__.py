"""A ``vllm serve`` of our own or somebody's, asked over HTTP."""
