"""How many tokens a prompt has whose provider did not tell: counted from the body of its request.

Text alone is counted. Pictures and sound cost tokens by rules of each model that change; a prompt with them is
estimated too low rather than by a guess.
"""

from typing import Any, Final

import msgspec

from udfs.domain.ingest.tokenizer import count_tokens

TOKENS_PER_MESSAGE: Final = 3
TOKENS_BEFORE_THE_ANSWER: Final = 3
"""What the chat format adds: https://cookbook.openai.com/examples/how_to_count_tokens_with_tiktoken"""

_TEXT_KEYS: Final = frozenset(
    {
        *("text", "content", "parts", "input", "output", "arguments", "name", "role", "thinking"),
        *("tool_calls", "function_call", "function", "functionCall", "functionResponse", "args", "response"),
    }
)
"""Where a message, or a part of one, has text, at any of the providers; what else there is has keys of its own."""


def estimated_prompt_tokens(request: dict[str, Any], model: str) -> int | None:
    """Tokens of the prompt in the body of a request to any of the providers; None: there is no prompt in it.

    >>> estimated_prompt_tokens({"messages": [{"role": "user", "content": "Where is my parcel?"}]}, "gpt-4o-mini")
    12
    """
    pieces: list[str] = []
    extra = 0
    found = False
    for name in ("messages", "contents", "input"):
        messages = request.get(name)
        if isinstance(messages, list):
            found = True
            extra += TOKENS_PER_MESSAGE * sum(isinstance(message, dict) for message in messages)
            for message in messages:
                _collect(message, pieces)
        elif isinstance(messages, str):
            found = True
            pieces.append(messages)
    if extra:
        extra += TOKENS_BEFORE_THE_ANSWER
    prompt = request.get("prompt")
    if isinstance(prompt, list):
        found = True
        extra += _given_tokens(prompt)
    if found or prompt is not None:
        for name in ("prompt", "system", "instructions", "systemInstruction", "system_instruction"):
            _collect(request.get(name), pieces)
        if request.get("tools"):
            pieces.append(msgspec.json.encode(request["tools"]).decode("utf-8", "replace"))
        return extra + sum(count_tokens(piece, model) for piece in pieces)
    return None


def _given_tokens(prompt: list[Any]) -> int:
    """A prompt of completions may be token ids, or several prompts of token ids."""
    return sum(
        sum(type(token) is int for token in each) if isinstance(each, list) else type(each) is int for each in prompt
    )


def _collect(value: object, pieces: list[str]) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            pieces.append(each)
        elif isinstance(each, list):
            waiting.extend(reversed(each))
        elif isinstance(each, dict):
            for name, inner in each.items():
                if name in _TEXT_KEYS:
                    waiting.append(inner)
