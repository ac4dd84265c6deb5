"""How values are shown to people: HTML for notebooks, plain text for terminals, both safe against foreign names."""
