"""A trace, sent again: open loop, on one clock, and what it cost.

In come requests, a window and a running engine; out go a record for each request, the engine's
iterations, the device's readings, and a measurement made of them. It may touch the engine it is
given, the clock and the device; ``numbers`` and ``records`` are pure.
"""
