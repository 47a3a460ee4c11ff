"""`python -m launch preflight VERB ..`: the entry point of our images asks before a verb that computes."""

import os
from typing import Annotated

import typer

from launch.commands.ending import fail

STOPPED = 3


def preflight(
    verb: Annotated[str, typer.Argument(help="smoke, demo, train, doctor or manifest.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Those of the verb.")] = None,
) -> None:
    """One line and 3 if this container cannot carry the verb out; silence and 0 if nothing speaks against it."""
    from launch.preflight import ELSEWHERE, SWITCH, gather, problem
    from launch.stacks import STACK_VARIABLE, all_pins

    stack = os.environ.get(STACK_VARIABLE)
    if stack is None or ELSEWHERE.intersection(word.partition("=")[0] for word in arguments or []):
        return
    if os.environ.get(SWITCH) == "off":
        typer.echo(f"preflight: {SWITCH}=off: nothing was looked at", err=True)
        return
    if stack not in all_pins():
        fail(f"preflight: {STACK_VARIABLE}={stack}: there is no such stack, only {', '.join(all_pins())}", STOPPED)
    if found := problem(verb, stack, gather(stack, os.environ)):
        fail(f"preflight: {found} ({SWITCH}=off goes on all the same)", STOPPED)
