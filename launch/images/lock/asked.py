"""Whom `images lock` asks, told before it asks: package indexes as uv's variables name them, registries, archives."""

import os
from collections.abc import Iterator, Mapping

from launch import stacks
from launch.images.build import without_login
from launch.images.lock.remote import questions

# uv's variables (an older name second), and what it does without.
INDEXES = {
    "package index": (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "uv's own"),
    "further package indexes": (("UV_INDEX", "UV_EXTRA_INDEX_URL"), "none"),
    "folders or pages of packages": (("UV_FIND_LINKS",), "none"),
}


def asked(stack: str, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A line for each, without logins."""
    for what, (variables, default) in INDEXES.items():
        given = [environment[name] for name in variables if environment.get(name)]
        yield f"{what}: {without_login(given[0])}" if given else f"{what}: {default} ({variables[0]} names others)"
    if stack in stacks.all_pins():
        yield from (question.whom for question in questions(stacks.pins(stack)))
