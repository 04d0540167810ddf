"""A running ``vllm serve``: what is said over its control socket, and the client's end of it."""
