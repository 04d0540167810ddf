"""Traffic recorded where it is: in a running server, or out of what Prometheus stored of it.

``vllm serve --middleware tuner.capture.TraceRecorder`` imports this package into the server: the
recorder loads nothing heavy, writes its files from its own thread, and no failure in it reaches
the server. ``prometheus`` is for ``tuner trace import``.
"""

from tuner.capture.recorder import TraceRecorder

__all__ = ["TraceRecorder"]
