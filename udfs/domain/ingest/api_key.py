"""Names of API keys. A key itself is a secret: what looks like one goes on as its hash alone."""

import re
from hashlib import sha256
from typing import Final

_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_SCHEME: Final = re.compile(r"(?:bearer|basic)\s+", re.IGNORECASE)
_KEY: Final = re.compile(r"(?:sk-|sk_|AIza|gsk_|xai-|hf_|nvapi-|pplx-).*", re.DOTALL)
_LONG_WORD: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_.+/=~-]{20,}")
"""Keys without a known prefix, JSON web tokens among them. A long name with a digit is taken for one, too."""


def key_name(value: str) -> str:
    """What a key is called in events: a hash of 64 hexadecimal digits or a name as it is, a key as its SHA-256.

    That is LiteLLM's hash of its keys, so that a key and its hash from another record are one.

    >>> key_name("mobile app")
    'mobile app'
    >>> key_name("sk-1234") == key_name("Bearer sk-1234") == hashed_key("sk-1234")
    True
    """
    value = value.strip()
    scheme = _SCHEME.match(value)
    if scheme:
        return _sha256(value[scheme.end() :])
    if _KEY.fullmatch(value) or (_LONG_WORD.fullmatch(value) and not _HASH.fullmatch(value)):
        return _sha256(value)
    return value


def hashed_key(key: str) -> str:
    """The SHA-256 of a key in hexadecimal; of a hash, or of nothing, itself."""
    return key if not key or _HASH.fullmatch(key) else _sha256(key)


def _sha256(key: str) -> str:
    return sha256(key.encode("utf-8", "replace")).hexdigest()
