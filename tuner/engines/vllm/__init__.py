"""vLLM itself: its arguments and flags, AsyncLLM in our process, EngineCore in a child."""
