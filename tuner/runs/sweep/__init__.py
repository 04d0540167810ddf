"""The run of ``tuner sweep``: climb, ladder, knee, confirming engine; one trace or several."""
