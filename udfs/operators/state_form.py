"""In what form a fold's state is stored, told by the name of a state that is never written.

Flink can't look into our bytes, but it writes the names of all registered states into each snapshot. So the form stands
in such a name, and whoever is about to restore a snapshot can tell from its metadata whether this code reads it.
A snapshot that came through several releases has a name of each: the newest form counts.
"""

import re
from typing import Final, NamedTuple

from udfs.operators.shard_fold import LOG_FORM, META_FORM
from udfs.operators.stored_key import HEADER_FORM

_MARK: Final = re.compile(
    r"^(?P<fold>.+)-form-(?P<key>\d+)-(?P<meta>\d+)-(?P<log>\d+)-(?P<version>\d+)-shards-(?P<shards>\d+)$"
)


class StateForm(NamedTuple):
    """Forms of what a shard stores, the version of the fold's own bytes, and over how many shards keys are spread."""

    key: int
    meta: int
    log: int
    version: int
    shards: int


def current_form(fold_version: int, shard_count: int) -> StateForm:
    """What this code writes."""
    return StateForm(HEADER_FORM, META_FORM, LOG_FORM, fold_version, shard_count)


def mark_of(fold: str, form: StateForm) -> str:
    """The name of the state that tells the form.

    >>> mark_of("limiter", StateForm(1, 1, 1, 2, 32))
    'limiter-form-1-1-1-2-shards-32'
    """
    return f"{fold}-form-{form.key}-{form.meta}-{form.log}-{form.version}-shards-{form.shards}"


def form_in(mark: str, fold: str) -> StateForm | None:
    """The form that a state's name tells of `fold`; None: it is another state.

    >>> form_in("limiter-form-1-1-1-2-shards-32", "limiter")
    StateForm(key=1, meta=1, log=1, version=2, shards=32)
    >>> form_in("limiter-meta", "limiter") is None
    True
    """
    found = _MARK.match(mark)
    if found is None or found["fold"] != fold:
        return None
    return StateForm(*(int(found[name]) for name in StateForm._fields))


def why_unreadable(stored: StateForm, now: StateForm) -> str | None:
    """Why this code can't go on from state of that form; None: it can, and upgrades it as it reads.

    >>> why_unreadable(StateForm(1, 1, 1, 1, 32), StateForm(1, 1, 1, 2, 32)) is None
    True
    >>> why_unreadable(StateForm(1, 1, 1, 3, 32), StateForm(1, 1, 1, 2, 32))
    'its state is of version 3, this release reads up to 2: start the newer release, or an older snapshot'
    """
    if stored.shards != now.shards:
        return (
            f"its keys are spread over {stored.shards} shards and shard_count is {now.shards}: "
            f"set shard_count to {stored.shards}, which is fixed for the life of a log"
        )
    for name in ("key", "meta", "log", "version"):
        was, reads = getattr(stored, name), getattr(now, name)
        if was > reads:
            what = "state" if name == "version" else f"{name} records"
            return (
                f"its {what} is of version {was}, this release reads up to {reads}: "
                "start the newer release, or an older snapshot"
            )
    return None
