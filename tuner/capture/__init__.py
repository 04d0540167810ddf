"""Traces recorded where the traffic is: in a running server, or out of its Prometheus history.

``vllm serve --middleware tuner.capture.TraceRecorder`` imports this package into the server, so it
loads nothing that a server does not have at hand. docs/capture.md tells how to use it.
"""

from tuner.capture.recorder import TraceRecorder

__all__ = ["TraceRecorder"]
