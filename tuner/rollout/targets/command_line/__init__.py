"""Command lines as a shell, Compose, systemd or a variable spells them, and vLLM's flags there."""
