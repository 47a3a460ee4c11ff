"""`python -m launch.pages` writes the generated pages and tables of docs/."""

from launch.pages.reference import FILE, page, with_tables

for path, text in {FILE: page(), **with_tables()}.items():
    path.write_text(text)
