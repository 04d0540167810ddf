"""The run of ``tuner sweep``: ramp, ladder, knee, confirming engine."""
