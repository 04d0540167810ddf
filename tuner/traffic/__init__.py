"""What a trace says: how many, how bursty, how long, how many at a time. Pure.

In reading order: ``columns`` a trace as arrays · ``arrivals`` rate, grid, busiest time ·
``concurrency`` how many at a time · ``summary`` all of it, and what to beware of · ``routing``
what one replica of several gets · ``scaling`` more or less load.
"""

from tuner.traffic.arrivals import busiest_window
from tuner.traffic.routing import route
from tuner.traffic.scaling import scale_load

__all__ = ["busiest_window", "route", "scale_load"]
