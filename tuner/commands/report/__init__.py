"""``tuner report``: what a run or a profile says, as one page."""
