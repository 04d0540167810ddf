"""Shared by several commands: options, run folders, results."""
