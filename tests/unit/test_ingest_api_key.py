"""No key in the clear gets into an event."""

from hashlib import sha256

import pytest

from udfs.domain.ingest.api_key import hashed_key, key_name

HASH = sha256(b"sk-1234").hexdigest()


@pytest.mark.parametrize("name", ["", "mobile app", "key-7", "production-frontend-gateway", HASH, "a@b.example 1"])
def test_a_name_or_a_hash_stays(name: str) -> None:
    assert key_name(name) == name


@pytest.mark.parametrize(
    "key",
    [
        "sk-1",
        "AIzaSyA",
        "gsk_abc",
        "xai-abc",
        "hf_abc",
        "0123456789abcdefghij",
        "a0-_" * 5,
        "eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl",
        HASH[:40],
    ],
)
def test_what_looks_like_a_key_is_hashed(key: str) -> None:
    hashed = sha256(key.encode()).hexdigest()
    assert key_name(key) == key_name(f" {key}\n") == key_name(f"Bearer {key}") == key_name(f"bearer  {key}") == hashed


def test_a_credential_is_hashed_whatever_it_looks_like() -> None:
    assert key_name(f"Bearer {HASH}") == sha256(HASH.encode()).hexdigest()
    assert key_name("Basic app") == hashed_key("app")


def test_a_key_by_its_field_is_hashed_unless_it_is_one_already() -> None:
    assert hashed_key("app") == sha256(b"app").hexdigest()
    assert (hashed_key(HASH), hashed_key("")) == (HASH, "")
