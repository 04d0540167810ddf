"""YAML read with the place of every character, and edited a few characters at a time."""
