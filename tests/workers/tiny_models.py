"""Tiny random models of several architectures, saved as transformers saves real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB_SIZE = 96
CONTEXT = 64
EOS = 1

_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.4,  # large, so that the best token leads by more than a rounding error
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}

CONFIGS: Mapping[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**_SHAPE, num_key_value_heads=1),
    "qwen3": Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=16),
    "mistral with a window of 8": MistralConfig(**_SHAPE, num_key_value_heads=2, sliding_window=8),
    "gpt-neox": GPTNeoXConfig(**_SHAPE),
    "gemma2 with soft caps and alternating windows": Gemma2Config(
        **_SHAPE, num_key_value_heads=2, head_dim=8, sliding_window=8, attn_logit_softcapping=5.0
    ),
    "gemma3 with five windows to one full layer": Gemma3TextConfig(
        **{**_SHAPE, "num_hidden_layers": 6}, num_key_value_heads=1, head_dim=8, sliding_window=8
    ),
    "phi3 with fused projections": Phi3Config(**_SHAPE, num_key_value_heads=2, sliding_window=None),
    "smollm3 with layers without positions": SmolLM3Config(
        **_SHAPE, num_key_value_heads=2, no_rope_layers=[1, 0], use_sliding_window=False
    ),
    "phi": PhiConfig(**_SHAPE, num_key_value_heads=4),
    "mixtral with experts": MixtralConfig(**_SHAPE, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "deepseek with values narrower than keys": DeepseekV3Config(
        **_SHAPE,
        num_key_value_heads=4,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    ),
    "gpt2 with learned positions": GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=EOS,
    ),
}

FEW = ("llama", "qwen2", "mistral with a window of 8", "gpt-neox", "gemma2 with soft caps and alternating windows")
"""Enough of them where each takes seconds."""


def save_tiny_model(folder: Path, config: PreTrainedConfig) -> Path:
    """Random weights under a fixed seed, and a tokenizer of as many words."""
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="w1", model_max_length=CONTEXT, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    return folder
