"""Token counts as producers give them, and what is believed of them."""

IMPLAUSIBLE_TOKENS = 2**24
"""No single event carries this many tokens: a larger count is a producer's fault and would lock a tenant out."""


def is_plausible(tokens: int) -> bool:
    """Whether a count can be charged as it stands.

    >>> [is_plausible(count) for count in (-1, 0, 131_072, 2**63)]
    [False, True, True, False]
    """
    return 0 <= tokens < IMPLAUSIBLE_TOKENS


def weighted_prompt_tokens(prompt_tokens: int, cached_tokens: int, cached_weight_permille: int) -> int:
    """What a prompt counts when its cached part counts less; never more than the prompt, never negative.

    >>> weighted_prompt_tokens(10_000, 8_000, 0)
    2000
    >>> weighted_prompt_tokens(10, 99, 500)
    5
    """
    cached_tokens = min(max(cached_tokens, 0), prompt_tokens)
    return prompt_tokens - cached_tokens + cached_tokens * cached_weight_permille // 1000
