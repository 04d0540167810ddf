"""The forecast of every cap: what it would do, which one to take, and how sure that is.

In come iterations and measurements; out go a step-time law, the whole trace replayed at every cap
by the scheduler model, a check of both against what was measured, and a verdict with its reason.
Pure and seeded. ``objective.py`` says which cap is best for today's load and for the headroom,
``load.py`` makes that load, ``required.py`` says which caps may be chosen at all. ``choice.py``
puts these together, under each drawn law. ``verdict_text.py`` puts the answer into words.
"""
