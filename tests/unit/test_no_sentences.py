"""Tests compare messages by the names and values in them, so that a better sentence breaks none of them.

Seen here: what `match=` is given, what is looked for by `in`, ==, startswith and the like, and the parameters and loop
values that end there. A run of plain lower-case words in it is a sentence.
"""

import ast
import re
from pathlib import Path

import pytest
from naming import has_line_naming, line_naming

TESTS = Path(__file__).parents[1]
MOST = 4  # plain words in a row: a term ("out of memory"), not a sentence
A_SENTENCE = "there is no such file."
SEARCHING = {"startswith", "endswith", "search", "fullmatch", "findall", "count"}
WORD = r"(?:a|[a-z]{2,}(?:'[a-z]+)?)"
SENTENCE = re.compile(rf"(?<![\w.`/-]){WORD}(?:[,:;]? {WORD}){{{MOST}}}(?![\w/-]|\.\w)")
OTHERS = (  # sentences that other programs write, and names that a document promises
    "FlashAttention2 has been toggled on",
    "Can't load the configuration",
    "Free memory on device",
    "No available memory",
    "To serve at least one request",
    "Task was killed due to the node",
    "closed by remote host",
    "Error response from daemon",
    "ssh: connect to host",
    "the device handle: GPU is lost",
    "no space left on device",
    "No matching distribution found",
    "modified by an inplace operation",
    "x1's type and x2's type should be same",
    "addition of two numbers up to 9",
)


def compared(tree: ast.AST) -> list[ast.expr]:
    """The expressions of a file that messages are compared with."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            found.append(node.value)
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn | ast.Eq) for op in node.ops):
            found += [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHING:
            found += node.args
    return found


def given(function: ast.AST, wanted: set[str]) -> list[ast.expr]:
    """What the parameters and loops of a test give to these of its variables; a row's other values come along."""
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.For) and wanted & {name.id for name in ast.walk(node.target) if hasattr(name, "id")}:
            found.append(node.iter)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "parametrize":
            variables = ast.unparse(node.args[0])
            if any(re.search(rf"\b{name}\b", variables) for name in wanted):
                found.append(node.args[1])
    return found


def sentences(source: str) -> set[str]:
    """The sentences that a test file compares messages with."""
    seen = []
    for part in ast.parse(source).body:
        here = compared(part)
        variables = {node.id for text in here for node in ast.walk(text) if isinstance(node, ast.Name)}
        seen += [*here, *given(part, variables)]
    literals = {node.value for part in seen for node in ast.walk(part) if isinstance(node, ast.Constant)}
    return {text for text in literals if isinstance(text, str) and SENTENCE.search(text)}


def test_tests_compare_no_sentences():
    found = {
        f"{path.relative_to(TESTS)}: {text!r}"
        for path in TESTS.rglob("*.py")
        for text in sentences(path.read_text())
        if not any(other in text for other in OTHERS)
    }
    assert found == set(), "compare names and values: naming.line_naming, naming.has_line_naming"


@pytest.mark.parametrize(
    "test",
    [
        "with pytest.raises(E, match={}): pass",
        "with pytest.raises(E, match=rf'{{name}}: ' + {}): pass",
        "assert {} in str(error.value)",
        "assert run.stderr.splitlines()[-1] == {}",
        "assert line.startswith({})",
        "for given, said in [(1, {})]:\n    assert said in ended.stderr",
        "for given, said in [(1, {})]:\n    with pytest.raises(E, match=said): pass",
    ],
)
def test_a_sentence_is_seen_wherever_it_is_compared(test):
    for literal, is_one in ((repr(A_SENTENCE), True), ("'x.y: … no such file'", False)):
        body = "\n    ".join(test.format(literal).splitlines())
        assert bool(sentences(f"def test():\n    {body}\n")) == is_one
        row = f"@pytest.mark.parametrize('n, said', [(1, {literal})])\ndef test(n, said):\n    assert said in text\n"
        assert bool(sentences(row)) == is_one


@pytest.mark.parametrize(
    ("text", "part", "there"),
    [
        ("fc.weight: 4 rows", "fc.weight:", True),
        ("fc.weight: 4 rows", "weight", True),
        ("fc.weights: 4 rows", "fc.weight", False),
        ("40 rows", 4, False),
        ("1.4 rows", 4, False),
        ("4,096 rows", 4, False),
        ("x4 rows", 4, False),
        ("rows: 4.", 4, True),
        ("rows: 4, columns: 5", "rows: 4 … 5", True),
        ("rows: 4, columns: 5", "columns … 4", False),
        ("rows: 4\ncolumns: 5", "rows … 5", False),
    ],
)
def test_a_part_is_a_whole_word_of_one_line(text, part, there):
    assert has_line_naming(text, part) == there == bool(re.search(line_naming(part, part), text))


def test_all_parts_stand_in_one_line():
    assert has_line_naming("x\nb 2, a 1\ny", "a 1", "b 2") and not has_line_naming("a 1\nb 2", "a 1", "b 2")
