"""1.1 to 1.2: fields were added, and none of them changes how the others are read.

1.2 has `provider` and `resumed_at_token` of a prompt, `usage_source` of an interruption and `cache_write_tokens` of a
completion. A 1.1 event says none of them, which is what their defaults say.
"""

from schemas.gen.headrace.v1.events_pb2 import Event


def upcast(event: Event) -> None:
    """Nothing is to be changed."""
    del event
