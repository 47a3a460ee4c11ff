"""The scales of an fp8 KV cache in a real engine: of this step after every sync, in every layer, whatever resets them.

CPU workers do not sleep: vLLM's own wake-up of GPU workers is called for one, without the memory that it maps.
"""

from types import SimpleNamespace

import pytest
import torch
from engines import buckets, engine, logprobs, model_of, post_load_pass, refit, worker_of
from models import checkpoint, make, perturbed, save
from vllm import SamplingParams
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.worker.gpu_worker import Worker

from ascend_quant.kv_cache.scales import AGE, FP8, sent_name
from ascend_quant.refit import RefitError

LAYERS = 2
SETTINGS = {"quantization_config": {"kv_cache": "fp8"}, "max_model_len": 256, "enable_prefix_caching": True}
TOKENS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)


def serves_fp8() -> bool:
    try:
        return bool(_get_attn_isa(torch.bfloat16, 128, 64, "fp8"))
    except (TypeError, ValueError, RuntimeError):
        return False


pytestmark = pytest.mark.skipif(not serves_fp8(), reason="this CPU, or this vLLM, has no attention with an fp8 cache")


def scales_of(step: int) -> dict[str, torch.Tensor]:
    """What a trainer would send behind the weights of a step: others in every layer, kind and step."""
    names = [sent_name(f"model.layers.{layer}.self_attn", kind) for layer in range(LAYERS) for kind in FP8.kinds]
    return {name: torch.tensor([0.01 * (1 + step) + 0.002 * i]) for i, name in enumerate(names)} | {
        AGE: torch.zeros(1, dtype=torch.int64)
    }


def sync(worker, state: dict[str, torch.Tensor]) -> None:
    """As a trainer's: one session around buckets of one buffer."""
    model = worker.model_runner.model
    with model.ascend_quant_refit.session():
        for bucket in buckets(state):
            model.load_weights(bucket)


def attentions(llm) -> dict[str, torch.nn.Module]:
    return {name: module for name, module in model_of(llm).named_modules() if name.endswith("self_attn.attn")}


def there(llm) -> dict[str, float]:
    """What vLLM's attention reads, on the device; the host's twins are the same."""
    found = {}
    for name, layer in attentions(llm).items():
        for kind in FP8.kinds:
            found[f"{name}.{kind}_scale"] = getattr(layer, f"_{kind}_scale").item()
            assert getattr(layer, f"_{kind}_scale_float") == found[f"{name}.{kind}_scale"]
    return found


def values(scales: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in scales.items() if name != AGE}


def wrong_by_hand(llm, scales: dict[str, float]) -> None:
    """Past everything of ours."""
    for name, value in scales.items():
        layer, _, kind = name.rpartition(".")
        attention = attentions(llm)[layer]
        setattr(attention, f"_{kind}_float", value)
        getattr(attention, f"_{kind}").fill_(value)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = make("qwen3", tmp_path_factory.mktemp("old"))
    states = [checkpoint(folder), *(perturbed(checkpoint(folder), step) for step in (1, 2, 3))]
    new = make("qwen3", tmp_path_factory.mktemp("new"))
    save(states[3], new)
    return folder, new, states


@pytest.fixture(scope="module")
def fresh(folders):
    """A fresh engine of step 3 whose scales are set by hand: its log-probabilities, and what it answers."""
    with engine(folders[1], **SETTINGS) as llm:
        before = logprobs(llm)
        wrong_by_hand(llm, values(scales_of(3)))
        llm.reset_prefix_cache()
        found = logprobs(llm)
        assert not torch.equal(before, found)  # scales matter
        yield found, lambda prompts, wanted: answers(llm, prompts, wanted)


@pytest.fixture(scope="module")
def loaded(folders):
    with engine(folders[0], **SETTINGS) as llm:
        yield llm


def answers(llm, prompts: list[list[int]], wanted=TOKENS) -> list[list[int]]:
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(request.outputs[0].token_ids) for request in llm.generate(asked, wanted, use_tqdm=False)]


def test_before_any_trainer_they_are_bounds_of_the_weights(loaded, folders):
    receipt = refit(loaded).last_receipt
    if receipt.number == 1:
        assert (receipt.reports["kv_scales"].age, receipt.as_metrics()["refit/kv_scales/sent"]) == (None, 0)
        assert all(0 < value != 1 for value in there(loaded).values())
        assert logprobs(loaded).isfinite().all()


def test_every_sync_brings_those_of_its_step_and_the_answers_are_a_fresh_engines(loaded, folders, fresh):
    digests = set()
    for step, state in enumerate(folders[2]):
        logprobs(loaded)  # fills the prefix cache
        loaded.collective_rpc(sync, args=(state | scales_of(step),))
        assert there(loaded) == values(scales_of(step))
        receipt = refit(loaded).last_receipt
        assert receipt.tensors == len(state) + 3 * LAYERS + 1
        assert (receipt.reports["kv_scales"].age, receipt.as_metrics()["refit/kv_scales/sent"]) == (0, 1)
        digests.add(receipt.reports["kv_scales"].digest)
        post_load_pass(loaded)  # vLLM's own sets them to 1
        assert there(loaded) == values(scales_of(step))
    assert len(digests) == len(folders[2])
    assert torch.equal(logprobs(loaded), fresh[0])


def test_requests_in_flight_go_on_with_the_new_weights_and_scales_from_their_first_token(loaded, folders, fresh):
    state, prompts = folders[2][3], [[3, 4, 5 + i] * 5 for i in range(4)]
    loaded.collective_rpc(sync, args=(folders[2][1] | scales_of(1),))
    for i, prompt in enumerate(prompts):
        loaded.llm_engine.add_request(f"flying-{i}", {"prompt_token_ids": prompt}, TOKENS)
    for _ in range(6):
        so_far = {output.request_id: list(output.outputs[0].token_ids) for output in loaded.llm_engine.step()}
    loaded.collective_rpc(sync, args=(state | scales_of(3),))
    ended = {}
    while loaded.llm_engine.has_unfinished_requests():
        outputs = [output for output in loaded.llm_engine.step() if output.finished]
        ended |= {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
    for i, prompt in enumerate(prompts):
        begun, whole = so_far[f"flying-{i}"], ended[f"flying-{i}"]
        assert 0 < len(begun) < TOKENS.max_tokens and whole[: len(begun)] == begun
        rest = SamplingParams(max_tokens=TOKENS.max_tokens - len(begun), temperature=0, ignore_eos=True)
        assert whole[len(begun) :] == fresh[1]([prompt + begun], rest)[0]


def without(name: str, scales: dict) -> dict:
    return {other: tensor for other, tensor in scales.items() if other != name}


K0 = sent_name("model.layers.0.self_attn", "k")
SPOILT = {
    "stale": (AGE, lambda scales: scales | {AGE: torch.tensor([1])}),
    "one missing": (K0.removeprefix("model."), lambda scales: without(K0, scales)),
    "no age": (AGE, lambda scales: without(AGE, scales)),
    "NaN": (K0.removeprefix("model."), lambda scales: scales | {K0: torch.tensor([float("nan")])}),
    "of another dtype": (K0, lambda scales: scales | {K0: scales[K0].bfloat16()}),
    "of an unknown layer": ("layers.9.self_attn", lambda scales: scales | {K0.replace("0", "9"): scales[K0]}),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_wrong_is_refused_by_name_and_the_next_sync_heals(loaded, folders, fresh, how):
    name, spoil = SPOILT[how]
    with pytest.raises(RefitError, match=name):
        loaded.collective_rpc(sync, args=(folders[2][2] | spoil(scales_of(2)),))
    with pytest.raises(RefitError, match="refuses to generate"):
        answers(loaded, [[3, 4, 5]])
    loaded.collective_rpc(sync, args=(folders[2][3] | scales_of(3),))
    assert torch.equal(logprobs(loaded), fresh[0])


def test_default_scales_are_refused(loaded, folders, fresh):
    """As vLLM sets them, without what follows that here, before a request."""
    loaded.collective_rpc(sync, args=(folders[2][3] | scales_of(3),))
    wrong_by_hand(loaded, dict.fromkeys(there(loaded), 1.0))
    with pytest.raises(RefitError, match=r"layers\.0\.self_attn"):
        answers(loaded, [[3, 4, 5]])
    loaded.collective_rpc(sync, args=(folders[2][3] | scales_of(3),))
    assert torch.equal(logprobs(loaded), fresh[0])


class Asleep:
    """A GPU worker's sleep and wake-up around this engine's model; what sleep discards is overwritten."""

    def __init__(self, llm, level: int):
        runner = worker_of(llm).model_runner
        model, self.refit = runner.model, refit(llm)
        self.refit.falls_asleep(level)
        saved = {name: buffer.clone() for name, buffer in model.named_buffers()} if level == 2 else {}
        backend = SimpleNamespace(resume=lambda tags: None)
        self.worker = Worker.__new__(Worker)
        vars(self.worker).update(
            model_runner=runner,
            vllm_config=runner.vllm_config,
            synchronize_device=lambda: None,
            _sleep_saved_buffers=saved,
            _sleep_saved_draft_buffers={},
            _sleep_saved_parameters={},
            _sleep_mode_backend=backend,
            _get_sleep_mode_backend=lambda: backend,
        )
        if level == 2:
            for resident in self.refit.residents:
                for tensor, _ in resident.tensors():
                    tensor.zero_()
            for buffer in model.buffers():
                buffer.fill_(float("nan") if buffer.is_floating_point() else 0)
        self.refit.slept(level)
        self.unmapped = [tensor for resident in self.refit.residents for tensor, _ in resident.tensors()]
        self.unmapped += model.buffers()

    def wake_up(self, tags: list[str] | None) -> None:
        """On a GPU, a kernel that touches the weights' memory before they are awake ends the process."""
        if tags is None or "weights" in tags:
            self.unmapped = []
        before = [tensor.clone() for tensor in self.unmapped]
        self.worker.wake_up(tags)
        assert all(is_same(*pair) for pair in zip(before, self.unmapped, strict=True))


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))  # NaN is NaN


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "order",
    [
        ("weights", "update", "kv_cache"),
        ("weights", "kv_cache", "update"),
        ("kv_cache", "weights", "update"),
        ("all", "update"),
    ],
    ids=" ".join,
)
def test_they_are_there_after_every_order_of_waking_up(loaded, folders, fresh, level, order):
    loaded.collective_rpc(sync, args=(folders[2][1] | scales_of(1),))
    logprobs(loaded)
    sleeper = Asleep(loaded, level)
    for step in order:
        if step == "update":
            loaded.collective_rpc(sync, args=(folders[2][3] | scales_of(3),))
        else:
            sleeper.wake_up(None if step == "all" else [step])
    assert there(loaded) == values(scales_of(3))
    assert torch.equal(logprobs(loaded), fresh[0])


def test_weights_that_slept_lightly_keep_theirs(loaded, folders, fresh):
    loaded.collective_rpc(sync, args=(folders[2][3] | scales_of(3),))
    Asleep(loaded, level=1).wake_up(None)
    assert there(loaded) == values(scales_of(3))
    loaded.reset_prefix_cache()
    assert torch.equal(logprobs(loaded), fresh[0])


def test_scales_for_an_engine_without_such_a_cache_are_refused(folders):
    with engine(folders[0]) as llm, pytest.raises(RefitError, match=r"layers\.0\.self_attn\.attn\.q_scale"):
        llm.collective_rpc(sync, args=(folders[2][1] | scales_of(1),))
