"""`python -m tools.pages` writes the generated pages and tables of docs/."""

from tools.pages.reference import FILE, page, with_tables

for path, text in {FILE: page(), **with_tables()}.items():
    path.write_text(text)
