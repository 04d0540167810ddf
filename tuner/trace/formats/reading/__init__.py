"""What trace formats share: lines and JSON of any size, rows, scalars, spans, refusals."""
