"""Counting tokens where nobody else did: the encoding by the model's name, any text, bounded work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from udfs.domain.ingest.prompt_estimate import estimated_prompt_tokens
from udfs.domain.ingest.tokenizer import CL100K, O200K, count_tokens, encoding_name


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", O200K),
        ("gpt-4o-mini-2024-07-18", O200K),
        ("gpt-4.1-nano", O200K),
        ("gpt-5", O200K),
        ("gpt-5.1-codex", O200K),
        ("openai/gpt-5-mini", O200K),
        ("o1", O200K),
        ("o3-mini", O200K),
        ("o4-mini-2025-04-16", O200K),
        ("ft:gpt-4o-2024-08-06:acme::abc", O200K),
        ("openai/gpt-oss-120b", O200K),
        ("GPT-4o", O200K),
        ("gpt-4", CL100K),
        ("gpt-4-turbo", CL100K),
        ("gpt-4-0613", CL100K),
        ("gpt-3.5-turbo", CL100K),
        ("gpt-35-turbo", CL100K),
        ("o1000-of-somebody-else", CL100K),
        ("claude-sonnet-4-5", CL100K),
        ("meta-llama/Llama-3.3-70B-Instruct", CL100K),
        ("", CL100K),
    ],
)
def test_the_encoding_follows_the_name_of_the_model(model: str, encoding: str) -> None:
    assert encoding_name(model) == encoding


@pytest.mark.parametrize(
    ("text", "cl100k", "o200k"),
    [
        # cl100k_base: examples/How_to_count_tokens_with_tiktoken.ipynb of https://github.com/openai/openai-cookbook.
        # o200k_base: pinned as found, so that other tables are noticed.
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 9, 8),
        ("tiktoken is great!", 6, 6),
        ("", 0, 0),
    ],
)
def test_texts_have_the_tokens_that_their_encoding_is_known_for(text: str, cl100k: int, o200k: int) -> None:
    assert count_tokens(text, "gpt-4") == cl100k
    assert count_tokens(text, "gpt-4o") == o200k


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>system", "a\ud800b", "\udfff", "\x00", "\U0010ffff"])
def test_any_text_has_tokens(text: str) -> None:
    assert count_tokens(text) > 0


@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "😀", "a\u0301", "!?", "word "])
def test_ten_megabytes_of_one_thing_are_counted(unit: str) -> None:
    # Tokenizers that merge by scanning all pairs again take hours for these.
    text = unit * (10_000_000 // len(unit.encode()))
    assert 0 < count_tokens(text, "gpt-4o") <= len(text.encode())


def test_the_tables_are_loaded_when_something_is_counted_and_not_before() -> None:
    script = (
        "import sys, udfs.domain.ingest.transcript, udfs.domain.ingest.tokenizer as t\n"
        "assert 'bpe_openai' not in sys.modules\n"
        "t.count_tokens('x')\n"
        "assert 'bpe_openai' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


USER = {"role": "user", "content": "Where is my parcel?"}


@pytest.mark.parametrize(
    ("request_body", "tokens"),
    [
        # Five of text, one of the role, three a message and three before the answer: what the provider reports.
        ({"messages": [USER]}, 12),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Where is my parcel?"}]}]}, 12),
        ({"contents": [{"role": "user", "parts": [{"text": "Where is my parcel?"}]}]}, 12),
        ({"input": "Where is my parcel?"}, 5),
        ({"input": [USER]}, 12),
        ({"input": [USER], "instructions": "Where is my parcel?"}, 17),
        ({"messages": [USER], "system": [{"type": "text", "text": "Where is my parcel?"}]}, 17),
        ({"prompt": "Where is my parcel?"}, 5),
        ({"prompt": ["Where is my parcel?", "Where is my parcel?"]}, 10),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2, 3], [4]]}, 4),
        ({"messages": []}, 0),
        ({"messages": [None, 5, {"role": None, "content": {"x": 1}}]}, 6),
        ({"model": "gpt-4o"}, None),
        ({}, None),
        ({"messages": "no list"}, 2),
    ],
)
def test_a_prompt_is_estimated_from_its_request(request_body: dict[str, object], tokens: int | None) -> None:
    assert estimated_prompt_tokens(request_body, "gpt-4o-mini") == tokens


def test_a_picture_in_a_prompt_is_not_counted_as_its_text() -> None:
    url = "data:image/png;base64," + "A" * 10_000
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Where is my parcel?"}]
    assert estimated_prompt_tokens({"messages": [{"role": "user", "content": content}]}, "gpt-4o-mini") == 12


def test_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "track", "description": "Finds a parcel."}}]
    with_tools = estimated_prompt_tokens({"messages": [USER], "tools": tools}, "gpt-4o-mini")
    assert with_tools is not None
    assert with_tools > 20
