"""Shared by several commands: options, run folders, the console."""
