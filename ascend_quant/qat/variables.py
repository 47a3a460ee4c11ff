"""slime's environment variables for INT4 fake quantization.

OPEN_TRAINING_INT4_FAKE_QAT_FLAG=1     on
OPEN_TRAINING_INT4_GROUP_SIZE=32       elements per group: 32 or 128; the default is 128, as in slime
"""

from collections.abc import Mapping

FLAG = "OPEN_TRAINING_INT4_FAKE_QAT_FLAG"
GROUP_SIZE = "OPEN_TRAINING_INT4_GROUP_SIZE"
SCHEMES = {"32": "int4_g32", "128": "int4_g128"}


class QatVariableError(ValueError):
    """Raised if a variable of INT4 fake quantization has an invalid value."""


def scheme_of_environment(environment: Mapping[str, str]) -> str | None:
    """Return the scheme that the variables select; None if they select none.

    Raises:
        QatVariableError: a value is invalid; the message lists the valid ones.
    """
    flag, size = environment.get(FLAG, "0"), environment.get(GROUP_SIZE, "128")
    if flag not in ("0", "1"):
        raise QatVariableError(f"{FLAG}={flag!r}: valid values are 1 (on) and 0 (off)")
    if size not in SCHEMES:
        raise QatVariableError(f"{GROUP_SIZE}={size!r}: valid values are {' and '.join(SCHEMES)}")
    return SCHEMES[size] if flag == "1" else None
