"""The suite that freezes what people use: through the program and files alone.

Two files of `engine/` go one step deeper. The contract asks engines through `tuner.engines.seam`,
the public interface that every engine keeps and that no command shows call by call; the lockstep
plays the model of the scheduler beside vLLM's own.
"""
