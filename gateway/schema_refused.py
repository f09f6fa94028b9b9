"""Parameters of other servers that are not implemented: only the values that change nothing are accepted.

A library that writes out its defaults is served; one that asks for more learns which parameter it was.
"""

from __future__ import annotations

from typing import Annotated

from gateway.schema import Neutral, StrictModel


class RefusedOfVllm(StrictModel):
    """vLLM's, of both endpoints."""

    length_penalty: Annotated[None, Neutral(1)] = None
    spaces_between_special_tokens: Annotated[None, Neutral(True)] = None
    use_beam_search: Annotated[None, Neutral(False)] = None
    bad_words: Annotated[None, Neutral([])] = None
    allowed_token_ids: Annotated[None, Neutral([])] = None
    logprob_token_ids: Annotated[None, Neutral()] = None
    truncate_prompt_tokens: Annotated[None, Neutral()] = None
    truncation_side: Annotated[None, Neutral()] = None
    structured_outputs: Annotated[None, Neutral()] = None
    guided_json: Annotated[None, Neutral()] = None
    guided_regex: Annotated[None, Neutral()] = None
    guided_choice: Annotated[None, Neutral()] = None
    guided_grammar: Annotated[None, Neutral()] = None
    guided_decoding_backend: Annotated[None, Neutral()] = None
    guided_whitespace_pattern: Annotated[None, Neutral()] = None
    thinking_token_budget: Annotated[None, Neutral(-1)] = None
    repetition_detection: Annotated[None, Neutral()] = None
    watermarking: Annotated[None, Neutral(False)] = None
    return_tokens_as_token_ids: Annotated[None, Neutral(False)] = None
    return_token_ids: Annotated[None, Neutral(False)] = None
    return_token_offsets: Annotated[None, Neutral(False)] = None
    request_id: Annotated[None, Neutral()] = None
    cache_salt: Annotated[None, Neutral()] = None
    stream_interval: Annotated[None, Neutral(1)] = None
    kv_transfer_params: Annotated[None, Neutral()] = None
    ec_transfer_params: Annotated[None, Neutral()] = None
    vllm_xargs: Annotated[None, Neutral({})] = None
    prompt_embeds: Annotated[None, Neutral()] = None


class RefusedOfSglang(StrictModel):
    """SGLang's, of both endpoints."""

    regex: Annotated[None, Neutral()] = None
    ebnf: Annotated[None, Neutral()] = None
    json_schema: Annotated[None, Neutral()] = None
    stop_regex: Annotated[None, Neutral([])] = None
    lora_path: Annotated[None, Neutral()] = None
    session_params: Annotated[None, Neutral({})] = None
    custom_params: Annotated[None, Neutral({})] = None
    custom_logit_processor: Annotated[None, Neutral()] = None
    return_hidden_states: Annotated[None, Neutral(False)] = None
    return_routed_experts: Annotated[None, Neutral(False)] = None
    return_cached_tokens_details: Annotated[None, Neutral(False)] = None
    rid: Annotated[None, Neutral()] = None
    extra_key: Annotated[None, Neutral()] = None
    bootstrap_host: Annotated[None, Neutral()] = None
    bootstrap_port: Annotated[None, Neutral()] = None
    bootstrap_room: Annotated[None, Neutral()] = None
    routed_dp_rank: Annotated[None, Neutral()] = None


class RefusedInChat(StrictModel):
    """Of the chat endpoint alone: OpenAI's, then those of vLLM and SGLang."""

    response_format: Annotated[None, Neutral({"type": "text"})] = None
    tools: Annotated[None, Neutral([])] = None
    tool_choice: Annotated[None, Neutral("none", "auto")] = None
    functions: Annotated[None, Neutral([])] = None
    function_call: Annotated[None, Neutral("none", "auto")] = None
    store: Annotated[None, Neutral(False)] = None
    modalities: Annotated[None, Neutral(["text"])] = None
    audio: Annotated[None, Neutral()] = None
    moderation: Annotated[None, Neutral()] = None
    prediction: Annotated[None, Neutral()] = None
    reasoning_effort: Annotated[None, Neutral()] = None
    verbosity: Annotated[None, Neutral("medium")] = None
    web_search_options: Annotated[None, Neutral()] = None
    prompt_cache_options: Annotated[None, Neutral()] = None

    echo: Annotated[None, Neutral(False)] = None
    continue_final_message: Annotated[None, Neutral(False)] = None
    add_special_tokens: Annotated[None, Neutral(False)] = None
    chat_template: Annotated[None, Neutral()] = None
    documents: Annotated[None, Neutral([])] = None
    include_reasoning: Annotated[None, Neutral(True)] = None
    media_io_kwargs: Annotated[None, Neutral({})] = None
    mm_processor_kwargs: Annotated[None, Neutral({})] = None
    return_prompt_text: Annotated[None, Neutral(False)] = None
    separate_reasoning: Annotated[None, Neutral(True)] = None
    stream_reasoning: Annotated[None, Neutral(True)] = None
    input_ids: Annotated[None, Neutral()] = None


class RefusedInCompletions(StrictModel):
    """Of the completions endpoint alone: OpenAI's ``suffix``, and vLLM's ``response_format``."""

    suffix: Annotated[None, Neutral()] = None
    response_format: Annotated[None, Neutral({"type": "text"})] = None
