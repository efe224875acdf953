"""Counts the tokens of a text whose provider did not: an estimate, to be marked UsageSource.ESTIMATED."""

from functools import cache, lru_cache
from typing import Final, Protocol, cast


class _Tokenizer(Protocol):
    def count(self, text: str) -> int: ...


O200K: Final = "o200k_base"
CL100K: Final = "cl100k_base"

_O200K_MODELS: Final = ("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-4o", "o1", "o3", "o4", "gpt-oss")


@lru_cache(maxsize=1024)
def encoding_name(model: str) -> str:
    """The encoding of a model by its name; a path of providers before it and a date after it change nothing.

    What is not known counts as cl100k_base: an estimate from another family's tokenizer is better than none, and a name
    nobody has listed yet must not stop the count.

    >>> encoding_name("azure/gpt-4o-mini-2024-07-18"), encoding_name("o3"), encoding_name("ft:gpt-4.1-nano:acme")
    ('o200k_base', 'o200k_base', 'o200k_base')
    >>> encoding_name("gpt-4-turbo"), encoding_name("gpt-35-turbo"), encoding_name("llama-3.3-70b")
    ('cl100k_base', 'cl100k_base', 'cl100k_base')
    """
    name = model.rsplit("/", 1)[-1].lower().removeprefix("ft:")
    for family in _O200K_MODELS:
        if name.startswith(family) and not name[len(family) : len(family) + 1].isalnum():
            return O200K
    return CL100K


def count_tokens(text: str, model: str = "") -> int:
    """Tokens of a text, in time linear in its length: 10 MB of the worst kind take about a second.

    What looks like a special token, <|endoftext|>, is text like any other. Never raises, whatever the text.

    >>> count_tokens("It left today.", "gpt-4o"), count_tokens("<|endoftext|>", "gpt-4"), count_tokens("")
    (4, 7, 0)
    """
    if not text:
        return 0
    tokenizer = _tokenizer(encoding_name(model))
    try:
        return tokenizer.count(text)
    except UnicodeEncodeError:
        # Half of a surrogate pair: counted as the replacement character that it is shown as.
        return tokenizer.count(text.encode("utf-8", "replace").decode())


@cache
def _tokenizer(encoding: str) -> _Tokenizer:
    # Imported late: it loads tables of some megabytes, and most transcripts tell their usage. The bindings and not the
    # package's Encoding, which refuses a million characters and builds a list of all tokens in order to count them.
    from bpe_openai import _bindings  # type: ignore[import-untyped]  # noqa: PLC0415

    return cast("_Tokenizer", _bindings.tokenizer_for_encoding(encoding))
