"""mkdocs' hook: it builds not docs/ itself, but a copy of it beside the pages of the repository's root."""

import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs starts a hook by its path

from launch.site import pages

COPY = tempfile.TemporaryDirectory(prefix="ascend-quant-docs-")  # until mkdocs ends


def on_config(config: MkDocsConfig) -> None:
    """Make the copy. Anchors are GitHub's, in Chinese too."""
    pages.write(Path(COPY.name), config.repo_url)
    config.docs_dir = COPY.name
    config.mdx_configs["toc"] = {"slugify": pages.slug}
