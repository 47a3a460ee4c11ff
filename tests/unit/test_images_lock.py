"""`images lock`: what it asks, what it changes, and what it leaves when nobody answers."""

import copy
import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
import typer
from lock_cases import HASHES, Tree, entry, make
from naming import has_line_naming, line_naming
from typer.testing import CliRunner, Result

from launch.errors import LaunchError
from launch.images.lock.command import lock
from launch.images.lock.packages import Entry, merged, parse
from launch.images.lock.refresh import put, same
from launch.stacks import File

OLD = entry("numpy==1.0") + entry("six==1.0")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """All is up to date, and everybody answers."""
    tree = make(tmp_path, monkeypatch)
    tree.stacks.write_text(tree.stacks.read_text().replace("registry/base:1", f"registry/base:1@{HASHES[0]}"))
    tree.digest(HASHES[0])
    for machine in ("x86_64", "aarch64"):
        tree.answers("cpu", machine, OLD)
    assert run("cpu").exit_code == 0
    return tree


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(lock)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})


def shown(result: Result) -> list[list[str]]:
    """The rows of the difference."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.stdout.splitlines()[1:]]


def test_what_is_up_to_date_stays(tree: Tree):
    before = tree.files()
    result = run("cpu")
    assert result.exit_code == 0 and has_line_naming(result.stdout, "cpu:", "no pin") and tree.files() == before


def test_a_lock_has_both_machines_and_says_what_it_is(tree: Tree):
    tree.answers("cpu", "aarch64", entry("numpy==1.0"))
    run("cpu")
    text = (tree.locks / "cpu.txt").read_text()
    assert "\n# torch: 2.13.0+cpu\n" in text  # install.sh reads it
    assert [(one.name, one.marker) for one in parse(text)] == [
        ("numpy", None),
        ("six", "platform_machine == 'x86_64'"),
    ]


def test_changes_are_written_and_shown_by_package(tree: Tree):
    for machine in ("x86_64", "aarch64"):
        tree.answers("cpu", machine, entry("numpy==2.0"), entry("rich==3.0"), entry("six==1.0", HASHES[3]))
    tree.digest(HASHES[1])
    first = tree.git("rev-parse", "HEAD")
    tree.git("commit", "--allow-empty", "-m", "second")
    second = tree.git("rev-parse", "HEAD")
    result = run("cpu")
    assert result.exit_code == 0
    assert shown(result) == [
        ["stacks.yaml", "cpu bases any", f"registry/base:1@{HASHES[0]}", f"registry/base:1@{HASHES[1]}"],
        ["stacks.yaml", "cpu sources part commit", first, second],
        ["cpu.txt", "numpy", "1.0", "2.0"],
        ["cpu.txt", "rich", "-", "3.0"],
        ["cpu.txt", "six", "1.0", "1.0, other files"],
    ]
    text = tree.stacks.read_text()
    assert f"any: registry/base:1@{HASHES[1]}  # how it is known" in text and text.startswith("# A comment that stays.")
    assert second in text and first not in text and "c" * 40 in text
    assert "numpy==2.0" in (tree.locks / "cpu.txt").read_text()
    bake = (tree.root / "docker-bake.hcl").read_text()
    assert HASHES[1] in bake and second in bake and "`cpu`" in (tree.root / "README.md").read_text()


def test_check_writes_nothing_and_fails(tree: Tree):
    tree.answers("cpu", "x86_64", entry("numpy==2.0"))
    before = tree.files()
    result = run("cpu", "--check")
    assert result.exit_code == 1 and ["cpu.txt", "six", "1.0", "-"] not in shown(result)
    assert any(row[:2] == ["cpu.txt", "numpy"] for row in shown(result)) and tree.files() == before


@pytest.mark.parametrize("missing", ["registry", "git", "index"])
def test_what_is_not_reached_keeps_its_pin_and_is_said_by_name(tree: Tree, missing: str):
    before = tree.files()
    if missing == "registry":
        (tree.fake / "digest").unlink()
    elif missing == "git":
        (tree.origin / ".git").rename(tree.origin / "gone")
    else:
        (tree.fake / "cpu.in.aarch64").unlink()
    names = {
        "registry": ("cpu bases any keeps its pin", "no such host"),
        "git": ("cpu sources part commit keeps its pin", "does not appear to be a git repository"),
        "index": ("cpu.txt keeps its pins", "No solution found"),
    }
    result = run("cpu")
    assert result.exit_code == 1 and tree.files() == before
    assert all(words in result.output for words in names[missing])


def test_the_others_are_refreshed_all_the_same(tree: Tree):
    (tree.fake / "digest").unlink()
    for machine in ("x86_64", "aarch64"):
        tree.answers("cpu", machine, entry("numpy==2.0"))
    assert run("cpu").exit_code == 1 and "numpy==2.0" in (tree.locks / "cpu.txt").read_text()


def test_the_locks_of_a_stack_are_written_together(tree: Tree):
    (tree.locks / "cpu.torch.in").write_text("# python: 3.11\ntorch==2.13.0+cpu\n")
    for machine in ("x86_64", "aarch64"):
        tree.answers("cpu", machine, entry("numpy==2.0"))
    before = tree.files()
    result = run("cpu")
    assert result.exit_code == 1 and tree.files() == before
    assert has_line_naming(result.output, "cpu.torch.txt keeps") and has_line_naming(result.output, "cpu.txt keep")
    for machine in ("x86_64", "aarch64"):
        tree.answers("cpu.torch", machine, entry("torch==2.13.0+cpu"))
    assert run("cpu").exit_code == 0
    assert "numpy==2.0" in (tree.locks / "cpu.txt").read_text() and (tree.locks / "cpu.torch.txt").exists()


@pytest.mark.parametrize(
    ("packages", "half"),
    [("{six: '1.0'}", ""), ("{six: '2.0'}", "six 2.0"), ("{torch: 2.13.0}", "torch 2.13.0"), ("{part: '1'}", "")],
)
def test_half_a_lock_is_refused_by_name(tree: Tree, packages: str, half: str):
    """A package of stacks.yaml, other than what is built from a commit, is in a lock; in its version."""
    tree.stacks.write_text(tree.stacks.read_text().replace("packages: {}", f"packages: {packages}"))
    result = run("cpu")
    assert result.exit_code == bool(half)
    for machine in ("x86_64", "aarch64") if half else ():
        assert re.search(f"cpu for {machine}: {half} .*in no lock", result.output)


def test_it_says_whom_it_asks_and_shows_no_login(tree: Tree, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", copy.deepcopy(os.environ))  # as Hugging Face's datasets does: another object
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    monkeypatch.setenv("UV_INDEX", "https://user:secret@packages.example/simple")
    said = run("cpu").stderr
    assert has_line_naming(said, "package indexes: https://***@packages.example/simple") and "secret" not in said
    assert has_line_naming(said, "package index: uv's own") and "asking registry: registry/base:1\n" in said
    assert "asking git: https://github.com/owner/part refs/heads/main" in said


def archive(folder: Path) -> tuple[str, str]:
    """An archive of one file, somewhere; its address and its hash."""
    (folder / "content").mkdir()
    (folder / "content" / "a.h").write_text("one")
    file = shutil.make_archive(str(folder / "include"), "zip", folder / "content")
    return f"file://{file}", hashlib.sha256(Path(file).read_bytes()).hexdigest()


def test_an_archive_that_is_another_file_now_is_an_error_and_no_new_pin(tmp_path: Path):
    address, digest = archive(tmp_path)
    assert same(File.model_construct(address=address, sha256=digest)) == digest
    for other in (
        File.model_construct(address=address, sha256="0" * 64),
        File.model_construct(address=f"{address}x", sha256=digest),
    ):
        with pytest.raises(LaunchError, match=line_naming(other.address)):
            same(other)


def test_an_annotated_tag_is_the_commit_that_it_points_at(tree: Tree):
    tree.git("tag", "-a", "v1", "-m", "v1")
    commit = tree.git("rev-parse", "HEAD")
    assert tree.git("rev-parse", "v1") != commit
    tree.stacks.write_text(tree.stacks.read_text().replace("branch: main", "tag: v1").replace(commit, "d" * 40))
    assert shown(run("cpu")) == [["stacks.yaml", "cpu sources part commit", "d" * 40, commit]]


def test_a_tag_that_is_gone_is_said(tree: Tree):
    tree.stacks.write_text(tree.stacks.read_text().replace("branch: main", "tag: v2"))
    result = run("cpu")
    assert result.exit_code == 1 and has_line_naming(result.output, "https://github.com/owner/part", "refs/tags/v2")


def test_the_first_digest_of_a_base(tree: Tree):
    tree.stacks.write_text(tree.stacks.read_text().replace(f"@{HASHES[0]}", ""))
    assert run("cpu").exit_code == 0 and f"registry/base:1@{HASHES[0]}" in tree.stacks.read_text()


def test_versions_stay_unless_upgrade_is_asked_for(tree: Tree):
    run("cpu")
    assert "--upgrade" not in (tree.fake / "asked").read_text()
    (tree.fake / "asked").write_text("")
    run("cpu", "--upgrade")
    first, second = (tree.fake / "asked").read_text().splitlines()
    assert "--upgrade" in first and "--upgrade" not in second  # the second machine takes the first one's versions
    assert "--excludes=" in first and "--python-version=3.11" in first and "--generate-hashes" in first


def test_the_locks_of_a_stack_and_one_of_none(tree: Tree):
    for name, text in (("cpu-image", "-c cpu.txt\nnumpy\n"), ("cpu.torch", "torch==2.13.0+cpu\n"), ("tool", "six\n")):
        (tree.locks / f"{name}.in").write_text(f"# python: 3.11\n# leave out: vllm\n{text}")
        for machine in ("x86_64", "aarch64"):
            tree.answers(name, machine, entry("six==1.0"))
    (tree.fake / "asked").write_text("")
    run("cpu")
    asked = (tree.fake / "asked").read_text().splitlines()
    assert [next(word for word in line.split() if word.endswith(".in")).split("/")[-1] for line in asked[::2]] == [
        "cpu.in",
        "cpu-image.in",
        "cpu.torch.in",
    ]
    assert "--no-emit-package=vllm" in asked[2] and "--no-deps" in asked[4] and "--excludes" not in asked[4]
    (tree.fake / "digest").unlink()  # not asked for a lock that is no stack's
    assert run("tool").exit_code == 0 and (tree.locks / "tool.txt").exists()
    result = run("gpu")
    assert result.exit_code == 2 and ": cpu, tool" in result.stderr


def test_a_lock_is_read_as_it_is_written():
    first = Entry("six", "1.0", (HASHES[0], HASHES[1]))
    marked = Entry("torch", "2.7.1+cpu", (HASHES[2],), "platform_machine == 'x86_64'")
    plain = Entry("torch", "2.7.1+cpu", (HASHES[2],))
    assert parse(f"# a comment\n\n{first}\n{marked}\n") == [first, marked]
    both = merged({"x86_64": [first, plain], "aarch64": [Entry("torch", "2.7.1", (HASHES[3],)), first]})
    assert [str(one).split(" \\")[0] for one in both] == [
        "six==1.0",
        "torch==2.7.1 ; platform_machine == 'aarch64'",
        "torch==2.7.1+cpu ; platform_machine == 'x86_64'",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("six\n", "line 1 .*'six'"),
        ("six==1.0\n", "no hash for six"),
        ("six==1.0 \\\n    --hash=md5:12\n", "line 2"),
        ("--index-url https://example.org\n", "line 1"),
        ("six @ https://example.org/six.whl\n", "line 1"),
    ],
)
def test_what_is_not_of_a_lock_is_an_error(text: str, says: str):
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_a_value_is_changed_in_its_place():
    text = "# top\na:\n  b: {c: 1.2, d: 'x'}  # why\n  e: 3\n"
    assert put(text, ("a", "b", "d"), "y") == text.replace("'x'", "y")
    assert put(text, ("a", "e"), "4") == text.replace("3", "4")
    with pytest.raises(KeyError, match="f"):
        put(text, ("a", "f"), "1")
    with pytest.raises(KeyError, match="f"):
        put(text, ("a", "e", "f"), "1")
