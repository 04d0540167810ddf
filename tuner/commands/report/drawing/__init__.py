"""The parts of a page: HTML, charts, and their sheet of styles."""
