"""The one mechanism that replaces functions of other packages: once each, and nothing where there is nothing."""

import sys
from types import ModuleType

import pytest

from ascend_quant.integrations.wrapping import MARK, Hook, install


@pytest.fixture
def package(monkeypatch) -> ModuleType:
    """A package `theirs`, with a function that `theirs.user` has imported by its name, and a class."""

    def answer():
        return 1

    class Sender:
        def __init__(self):
            self.made = [1]

    theirs, user = ModuleType("theirs"), ModuleType("theirs.user")
    theirs.answer = user.answer = answer
    theirs.Sender = Sender
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    monkeypatch.setitem(sys.modules, "theirs.user", user)
    return theirs


def adding(original):
    return lambda *given: original(*given) + 1


def hook(*targets: str, make=adding, **more) -> Hook:
    return Hook(targets, make, why="", versions="", off="", **more)


def test_a_function_is_replaced_once(package):
    for _ in range(2):
        install([hook("theirs:answer")])
    assert package.answer() == 2 and getattr(package.answer, MARK) == "theirs:answer"
    assert sys.modules["theirs.user"].answer() == 1


def test_who_has_imported_it_by_its_name_follows(package):
    install([hook("theirs:answer", everywhere=True)])
    assert package.answer() == sys.modules["theirs.user"].answer() == 2


def test_a_method(package):
    def counting(original):
        def __init__(self):
            original(self)
            self.made.append(2)

        return __init__

    install([hook("theirs:Sender.__init__", make=counting)])
    assert package.Sender().made == [1, 2]


@pytest.mark.parametrize(
    "target", ["theirs:Absent.__init__", "theirs:absent", "theirs.absent:answer", "not_theirs:Sender.__init__"]
)
def test_what_is_not_there_is_left_or_an_error(package, target):
    install([hook(target, optional=True)])
    with pytest.raises((ImportError, AttributeError)):
        install([hook(target)])


def test_a_module_that_nothing_has_loaded_stays_so(package, monkeypatch):
    monkeypatch.delitem(sys.modules, "theirs.user")
    install([hook("theirs.user:Sender.__init__", loaded=True, optional=True)])
    assert "theirs.user" not in sys.modules


def test_what_does_not_fit_stays(package):
    install([hook("theirs:answer", fits=lambda original: False)])
    assert package.answer() == 1
