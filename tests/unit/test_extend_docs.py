"""The pages on extending: their code runs as it stands there, and what they name is there."""

import re
from pathlib import Path

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.refit import RefitError
from ascend_quant.schemes import get_scheme
from launch.root import ROOT

NAMES = ("extend_kernel", "extend_engine")
PAGES = [ROOT / "docs" / f"{name}{end}" for name in NAMES for end in (".md", ".zh.md")]
OF_THE_EXAMPLE = {"docker/locks/cpu-vllm0.33.in", "docker/locks/cpu-vllm0.33.txt"}  # what the reader makes
FILE = re.compile(r"(?:ascend_quant|launch|tests|docker|docs|benchmarks|\.github)/[\w./-]+\.\w+")


def code_of(name: str) -> dict:
    """What the page's Python makes; it is the same in both languages."""
    texts = [(ROOT / "docs" / f"{name}{end}").read_text() for end in (".md", ".zh.md")]
    (code,), (twin,) = (re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for text in texts)
    assert code == twin
    made = {"__name__": "extended"}
    exec(compile(code, name, "exec"), made)
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_a_page_names_are_there(page: Path):
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.DOTALL))
    named = [span.partition("::") for span in spans if FILE.fullmatch(span.partition("::")[0])]
    assert len(named) > 5
    for file, _, test in named:
        assert file in OF_THE_EXAMPLE or (ROOT / file).is_file(), file
        assert not test or f"\ndef {test}(" in (ROOT / file).read_text(), test


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("ascend_quant/kernels/linear_choice.py", ("tiles_by_rule", "LEAST_LENGTH", "takes_cutlass")),
        ("ascend_quant/kernels/tune_linear.py", ("candidates", "_splits")),
        ("ascend_quant/kernels/tuned.py", ("split_k",)),
        ("ascend_quant/refit/session.py", ("record",)),
        ("ascend_quant/refit/servable.py", ("require_servable", "why_not_servable", "falls_asleep", "slept", "woke")),
    ],
)
def test_what_the_pages_tell_to_edit_is_defined_there(file: str, names: tuple[str, ...]):
    text = (ROOT / file).read_text()
    for name in names:
        assert re.search(rf"^ *(?:def {name}\(|{name}(?:: [\w\[\], ]+)? = |{name}: \w+$)", text, re.M), name


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_the_toy_engine_serves_what_the_definition_says_and_refuses_otherwise(scheme: str):
    engine = code_of("extend_engine")["ToyEngine"](8, 64, scheme)
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (8, 3))
    with pytest.raises(RefitError):
        engine.forward(x)
    engine.load_weights([("linear.weight", w)])
    codes, scale = oracle.quantize(w, get_scheme(scheme))
    assert torch.equal(engine.buffers.codes.float(), codes.float())
    assert torch.equal(engine.buffers.scale.view(-1), scale)
    assert torch.allclose(engine.forward(x).float(), oracle.product(x, codes, scale, get_scheme(scheme)), rtol=2**-7)
    for wrong in ([("linear.weight", w * torch.nan)], []):
        with pytest.raises(RefitError):
            engine.load_weights(wrong)
        with pytest.raises(RefitError):
            engine.forward(x)
    engine.load_weights([("linear.weight", w)])
    assert engine.forward(x).shape == (3, 8)
