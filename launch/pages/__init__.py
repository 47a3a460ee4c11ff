"""Documentation: generated pages and tables, and the copy of docs/ that mkdocs builds the site from."""
