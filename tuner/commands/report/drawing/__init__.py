"""What a page is made of: HTML, charts, and their sheet of styles."""
