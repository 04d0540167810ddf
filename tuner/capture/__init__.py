"""Traffic recorded where it is: in a running server, or out of what Prometheus remembers of it.

In come requests and outputs as a server sees them, or scrapes; out go rows of a trace, without any
text. ``vllm serve --middleware tuner.capture.TraceRecorder`` imports this package into the server:
it loads nothing that a server does not have at hand, writes to its own files from a thread of its
own, and nothing that goes wrong in it reaches the server. docs/capture.md tells how to use it.
"""

from tuner.capture.recorder import TraceRecorder

__all__ = ["TraceRecorder"]
