"""Documentation: generated pages and tables, and the copy of docs/ from which mkdocs builds the site."""
