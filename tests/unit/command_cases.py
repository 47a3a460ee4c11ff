"""Commands that a page shows, read as a shell and the programs would read them; nothing is run."""

import re
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import dropwhile

import typer

from ascend_quant.commands.app import app as tools
from launch.commands import app as run

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.DOTALL)
OF_THE_PACKAGE = ("data", "demo", "smoke")  # commands of run.sh that ascend-quant has, too
ASSIGNED = re.compile(r"[A-Z_]+=\S*")  # a variable before a command


def commands(page: str) -> list[list[str]]:
    """The words of each command in a page's blocks of shell, without what is written to a file.

    && and | part two commands; lines that go on are one.
    """
    texts = [text for _, language, text in FENCED.findall(page) if language in ("", "bash")]
    found = []
    for line in "".join(texts).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        one: list[str] = []
        for word in [*lexer, "&&"]:
            if word in ("&&", "|"):
                found.append(list(dropwhile(ASSIGNED.fullmatch, one)))
                one = []
            else:
                one.append(word)
    return [words[: words.index(">")] if ">" in words else [w for w in words if w != ">>"] for words in found if words]


def understood(words: Sequence[str]) -> None:
    """Parses a command of run.sh's Python or of `ascend-quant`, or looks for the module that `python -m` starts.

    Raises:
        KeyError: there is no such command.
        click.UsageError: it has no such option, or takes no such argument.
    """
    if words[:2] == ["python", "-m"]:
        assert find_spec(words[2]), words
        return
    app = tools if words[0] in ("ascend-quant", *OF_THE_PACKAGE) else run
    name, words = "", words[words[0] == "ascend-quant" :]
    group = typer.main.get_command(app)
    while isinstance(group, typer.core.TyperGroup):
        name, *words = words
        group = group.commands[name]
    group.make_context(name, list(words))
