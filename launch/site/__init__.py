"""The site of the documents, as mkdocs.yml says: `mkdocs build --strict`."""
