"""How agent loops join the turns of a chat whose tokens the tokenizer has not."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

from omegaconf import OmegaConf
from verl.utils.import_utils import load_class_from_fqn

from ascend_quant.integrations.verl.agent_loops import ChatManager, ChatWorker, use_chats
from ascend_quant.integrations.verl.compat import plain_class, type_for_turns
from benchmarks.train_files import save_tokenizer


def test_verl_loads_our_manager_of_our_workers_and_a_users_own_is_left():
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"agent": {"num_workers": 2}}, "model": {}}})
    use_chats(config)
    agent = config.actor_rollout_ref.rollout.agent
    assert load_class_from_fqn(agent.agent_loop_manager_class, "AgentLoopManager") is ChatManager
    assert plain_class(ChatManager(config, llm_client=None).agent_loop_workers_class) is ChatWorker
    agent.agent_loop_manager_class = "a.users.Own"
    use_chats(config)
    assert agent.agent_loop_manager_class == "a.users.Own"


@pytest.mark.parametrize(
    ("model_type", "tokens", "taken"),
    [
        ("deepseek_v3", [], None),  # Moonlight: with Kimi's tokens
        ("deepseek_v3", ["<｜end▁of▁sentence｜>"], "deepseek_v3"),
        ("qwen3_moe", [], "qwen3_moe"),
    ],
)
def test_a_chat_whose_tokens_are_not_there_is_joined_in_the_general_way(model_type, tokens, taken, tmp_path):
    from transformers import AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    save_tokenizer(512, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    if tokens:
        tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    assert type_for_turns(model_type, tokenizer) == taken
    create_continuous_token_builder(tokenizer, hf_model_type=type_for_turns(model_type, tokenizer))
