"""Environment variables that users give to a run: which names they may have, and which values may be printed."""

import re
from collections.abc import Mapping
from typing import Any

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
FOLDERS = ("PWD", "OLDPWD")  # which `secret` takes for passwords
LOGIN = re.compile(r"(?<=://)\S*@")
ASSIGNED = re.compile(
    r"""([\w.-]+)(["']?\s*[=:]\s*)("[^"\n]*"|'[^'\n]*'|\\?["']?[^\s"',;{}\[\]\\][^\s"',;}]*)"""  # a="b c", {a: b}
)
HEADER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
COUNTED = ("key", "keys", "token", "tokens")  # what has numbers that are no secrets: `tokens: 512`, `token=3`


def checked(variables: dict[str, str]) -> dict[str, str]:
    """Check that a run's processes can have each variable from a user; returns them.

    Raises:
        ValueError: the name that they cannot, and why.
    """
    for name in variables:
        if name in OTHER_CLUSTERS:
            raise ValueError(f"{name} would connect this run to another Ray cluster: remove it")
        if name in OF_THE_LAUNCHER:
            raise ValueError(f"{name} is set by the launcher: remove it")
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name for an environment variable")
    return variables


def shown(name: str, value: str) -> str:
    """Return a value as it may be printed: no secret, which its name tells, and no login in an address."""
    return "***" if value and secret(name, value) else LOGIN.sub("***@", value)


def secret(name: str, value: str = "") -> bool:
    """Return whether a variable or a setting of this name holds a secret; numbers of tokens are none."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    singular = any(word.endswith(SECRETS) for word in words)
    return singular or (any(word.removesuffix("S").endswith(SECRETS) for word in words) and not value.isdecimal())


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as they may be printed."""
    return {name: shown(name, value) for name, value in variables.items()}


def without_secrets_in(text: str) -> str:
    """Strip a text of secrets, which are found by their names wherever name=value or name: value stands."""
    return ASSIGNED.sub(_hide, HEADER.sub(r"\1 ***", LOGIN.sub("***@", text)))


def override_shown(override: str) -> str:
    """Return NAME=VALUE as it may be printed."""
    name, equals, value = override.partition("=")
    return f"{name}=***" if equals and value and _is_secret(name, value) else without_secrets_in(override)


def tree_shown(tree: Any) -> Any:
    """Return settings in mappings and lists as they may be printed."""
    if isinstance(tree, Mapping):
        return {
            name: "***" if isinstance(value, str | int) and _is_secret(str(name), str(value)) else tree_shown(value)
            for name, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [tree_shown(one) for one in tree]
    return LOGIN.sub("***@", tree) if isinstance(tree, str) else tree


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret: of a setting's name the last word tells (api_key is a secret, max_token_len is
    none), of a variable's each one does."""
    leaf = name.rpartition(".")[2]
    telling = leaf if leaf.isupper() else re.split(r"[_-]", leaf)[-1]
    counted = telling.lower() in COUNTED and NUMBER.fullmatch(value)
    return bool(value) and secret(telling, value) and telling not in FOLDERS and not counted


def _hide(assigned: re.Match[str]) -> str:
    name, between, value = assigned.groups()
    quote = value[0] if value[0] in "\"'" else ""
    inside = value[1:].removesuffix(quote) if quote else value
    after = quote if quote and len(value) > 1 and value.endswith(quote) else ""
    return f"{name}{between}{quote}***{after}" if _is_secret(name, inside) else assigned[0]
