"""vLLM's scheduler as a discrete-event model, compiled: for the simulated engine and the twin."""
