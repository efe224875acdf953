"""What the status of an HTTP response says of an attempt."""

from typing import Final

CLIENT_CLOSED_REQUEST: Final = 499
"""The client went away before the answer: nginx's number, which gateways took over."""

_RETRYABLE: Final = frozenset((408, 409, 425, 429))


def is_retryable(status: int) -> bool:
    """Whether clients of model APIs try again: timeouts, conflicts, rate limits and faults of the server.

    The same as in OpenAI's and Anthropic's own clients, and 425, Too Early, which asks for it.

    >>> is_retryable(429), is_retryable(503), is_retryable(400), is_retryable(0)
    (True, True, False, False)
    """
    return status in _RETRYABLE or status >= 500
