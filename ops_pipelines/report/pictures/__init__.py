"""Pictures that need no browser to be drawn, as SVG, Markdown or PNG."""
