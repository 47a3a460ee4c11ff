"""What an image answers to each word, as its own user, as nobody in particular, and on a root that is read only."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.timeout(900)

AT_ONCE = 2
WAYS = {
    "as it is": (),
    "as somebody": ("--user", "12345:12345"),
    "read only": ("--read-only",),
    "read only, with /tmp": ("--read-only", "--tmpfs", "/tmp:exec"),
}
WITHOUT_TMP = "read only"
NO_TMP = "/tmp cannot be written by uid"


class Row(NamedTuple):
    """What is said, the status, and a part of what is answered; `without_tmp`: both where nothing can be written."""

    said: str
    status: int
    part: str
    without_tmp: tuple[int, str] | None = None


TABLE = [
    *(Row(said, 0, "usage: docker run") for said in ("", "help", "--help")),
    Row("smoke --help", 0, "--only"),
    Row("smoke --only nothing", 2, "nothing", (1, NO_TMP)),
    Row("demo --help", 0, "--steps"),
    Row("demo --steps 0", 2, "--steps", (1, NO_TMP)),
    Row("train no-such-recipe", 2, "no-such-recipe", (1, NO_TMP)),
    Row("stop no-such-run", 2, "no-such-run"),
    Row("recipe list", 0, "addition-int8"),
    Row("data no-such-data", 2, "no-such-data"),
    Row("doctor --set x=1", 2, "--recipe"),
    Row("test unit", 2, "this image has no tests"),
    Row("bench refit", 2, "bench needs the sources"),
    Row("fly", 2, "no verb 'fly'. Verbs: smoke doctor demo train"),
    Row("python --version", 0, "Python 3.11"),
]


@pytest.fixture(scope="module")
def answers(docker, cpu) -> dict[tuple[str, str], tuple[int, str]]:
    """Status and text by (way, what is said): all of them, some at a time."""
    asked = [(way, row.said) for way in WAYS for row in TABLE]

    def ask(one: tuple[str, str]) -> tuple[int, str]:
        way, said = one
        options = ("--rm", "--network=none", "--shm-size=2g", *WAYS[way])
        done = docker.tried("run", *options, cpu, *said.split(), timeout=300)
        return done.returncode, (done.stdout + done.stderr).strip()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.said or "nothing")
def test_status_and_words(answers, way: str, row: Row):
    status, text = answers[way, row.said]
    wanted, part = row.without_tmp if row.without_tmp and way == WITHOUT_TMP else (row.status, row.part)
    assert status == wanted and part in text, text
    assert "Traceback" not in text
    if status:
        assert len(text.splitlines()) == 1, text


def test_every_verb_is_in_the_table(docker, cpu):
    (listed,) = [
        answer for answer in docker.tried("run", "--rm", cpu, "fly").stderr.splitlines() if "Verbs: " in answer
    ]
    verbs = listed.partition("Verbs: ")[2].partition(";")[0].split()
    assert set(verbs) <= {row.said.partition(" ")[0] for row in TABLE}


def test_the_doctor_says_what_a_read_only_root_lacks(docker, cpu):
    done = docker.tried("run", "--rm", "--read-only", "--network=none", "--shm-size=2g", cpu, "doctor", "--json")
    found = {one["check"]: one for one in json.loads(done.stdout)["hosts"][0]["findings"] if one["level"] == "error"}
    assert done.returncode == 1 and found.keys() == {"machine.tmp"}, done
    assert NO_TMP in found["machine.tmp"]["what"] and "--tmpfs" in found["machine.tmp"]["fix"]
