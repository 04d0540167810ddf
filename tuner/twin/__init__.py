"""The forecast of every cap: what it would do, which one to take, and how sure that is.

In come iterations and replays; out go a step-time law, the whole trace replayed at every cap by the
scheduler model, a check of both against what was measured, and a verdict with its reason. Pure and
seeded. ``samples.py`` has what draws of the law predict; ``decide.py`` is the rule for them, and
for draws of replayed windows; ``verdict.py`` puts it into words.
"""
