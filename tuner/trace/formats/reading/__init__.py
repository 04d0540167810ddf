"""The parts that trace formats share: files of any size, rows, scalars, spans, refusals."""
