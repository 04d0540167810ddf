"""Rows as columns: a batch of them as arrays, read from blocks of text with Arrow and written."""
