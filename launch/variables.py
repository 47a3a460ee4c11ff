"""Environment variables that users give to a run: which names they may have, and which values may be printed."""

import re
from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OTHER_CLUSTERS = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_JOB_HEADERS",
    "RAY_NAMESPACE",
    "RAY_TMPDIR",
)
OF_THE_LAUNCHER = ("ASCEND_QUANT_RUN", "PATH", "SPT_NOENV")
SECRETS = ("AUTH", "CREDENTIAL", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PWD", "SECRET", "TOKEN")
LOGIN = re.compile(r"(?<=://)\S*@")


def checked(variables: dict[str, str]) -> dict[str, str]:
    """The variables, if a run's processes can have each of them from a user.

    Raises:
        ValueError: the name that they cannot, and why.
    """
    for name, value in variables.items():
        if name in OTHER_CLUSTERS:
            raise ValueError(f"{name} would tie this run's processes to another Ray cluster: leave it out")
        if name in OF_THE_LAUNCHER:
            raise ValueError(f"{name} is set by the launcher itself: leave it out")
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if "\0" in value:
            raise ValueError(f"{name}: no environment can hold its value, which has a NUL character")
    return variables


def shown(name: str, value: str) -> str:
    """A value as it may be printed: without a secret, by its name, and without the login in an address."""
    return "***" if value and secret(name, value) else LOGIN.sub("***@", value)


def secret(name: str, value: str = "") -> bool:
    """Whether a variable or a setting of this name holds a secret; numbers of tokens are none."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    singular = any(word.endswith(SECRETS) for word in words)
    return singular or (any(word.removesuffix("S").endswith(SECRETS) for word in words) and not value.isdecimal())


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables as they may be printed."""
    return {name: shown(name, value) for name, value in variables.items()}
