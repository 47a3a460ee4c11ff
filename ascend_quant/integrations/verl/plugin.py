"""The plugin that verl loads at the end of `import verl`, in every process (entry-point group `verl.plugins`).

verl logs a plugin's exception at debug level and continues; a half-applied plugin would cause unrelated errors much
later, so the exception is logged here as an error.
"""

import logging

logger = logging.getLogger(__name__)

try:
    from ascend_quant.integrations.verl import hooks, platform

    platform.register()
    hooks.apply()
except Exception:
    logger.exception("the verl plugin `ascend_quant` could not be applied; this process runs verl without it")
    raise
