"""Environment variables that users set for a run: their valid names, and the values that may be printed."""

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
FOLDERS = ("PWD", "OLDPWD")  # names that `secret` would take for passwords
LOGIN = re.compile(r"(?<=://)\S*@")
ASSIGNED = re.compile(
    r"""([\w.-]+)(["']?\s*[=:]\s*)("[^"\n]*"|'[^'\n]*'|\\?["']?[^\s"',;{}\[\]\\][^\s"',;}]*)"""  # a="b c", {a: b}
)
HEADER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
COUNTED = ("key", "keys", "token", "tokens")  # their plural counts, which are no secrets: `tokens: 512`, `token=3`


def checked(variables: dict[str, str]) -> dict[str, str]:
    """Check that a user may set each variable for a run's processes; return the variables.

    Raises:
        ValueError: a variable cannot be set; the message has its name and the reason.
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
    """Return a value for printing, without secrets (detected by name) and without logins in URLs."""
    return "***" if value and secret(name, value) else LOGIN.sub("***@", value)


def secret(name: str, value: str = "") -> bool:
    """Return whether a variable or setting of this name contains a secret; numbers of tokens do not."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    singular = any(word.endswith(SECRETS) for word in words)
    return singular or (any(word.removesuffix("S").endswith(SECRETS) for word in words) and not value.isdecimal())


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for printing."""
    return {name: shown(name, value) for name, value in variables.items()}


def without_secrets_in(text: str) -> str:
    """Remove secrets from a text; they are found by name in name=value or name: value."""
    return ASSIGNED.sub(_hide, HEADER.sub(r"\1 ***", LOGIN.sub("***@", text)))


def override_shown(override: str) -> str:
    """Return NAME=VALUE for printing."""
    name, equals, value = override.partition("=")
    return f"{name}=***" if equals and value and _is_secret(name, value) else without_secrets_in(override)


def tree_shown(tree: Any) -> Any:
    """Return nested settings for printing, without secrets."""
    if isinstance(tree, Mapping):
        return {
            name: "***" if isinstance(value, str | int) and _is_secret(str(name), str(value)) else tree_shown(value)
            for name, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [tree_shown(one) for one in tree]
    return LOGIN.sub("***@", tree) if isinstance(tree, str) else tree


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret: for a setting, the last word of the name decides (api_key is a secret,
    max_token_len is not); for a variable, any word."""
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
