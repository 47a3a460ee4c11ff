"""Where this project's files are (configs/, docker/, docs/): beside the sources, or where an image has put them."""

import os
from pathlib import Path

VARIABLE = "ASCEND_QUANT_HOME"  # set by our images, in which the sources are an installed package
SOURCES = Path(__file__).parents[1]  # what has ascend_quant/ and launch/
ROOT = Path(os.environ.get(VARIABLE) or SOURCES)
