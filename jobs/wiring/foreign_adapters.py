"""The adapter of a source in the settings."""

from jobs.wiring.settings import ForeignSource
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Adapter


class ForeignAdapterError(ValueError):
    """A source that can't be read as its settings say."""


def adapter_of(source: ForeignSource) -> Adapter:
    """How the records of a source are read. Raises ForeignAdapterError."""
    found = FORMATS.get(source.format)
    if found is None:
        raise ForeignAdapterError(f"{source.format}: no such format; known are {', '.join(FORMATS)}")
    return found.adapter
