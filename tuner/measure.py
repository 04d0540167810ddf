"""Records and iterations → what one replay cost. Pure. Definitions: docs/measuring.md."""
