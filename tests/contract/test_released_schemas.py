"""The schema as it is against those that were released: their readers and their logs are still out there."""

from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]
from hypothesis import given

from jobs.ops.schema_diff.compare import Schema, compare
from jobs.ops.schema_diff.sources import read_schema
from schemas import events as ev
from schemas.codec import wire_event
from schemas.downcast import CriticalFieldsLostError, downcast
from schemas.generate import PROTO
from schemas.versions import ADDED, MARK_OF_FIELD, ROUTES, added_after, parse
from tests.generated_events import events

RELEASED = PROTO.parent / "released"
VERSIONS = sorted((path.name for path in RELEASED.iterdir()), key=parse)
FILES = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
ENVELOPE = "headrace.v1.Event"


@pytest.fixture(scope="module")
def current() -> Schema:
    return read_schema(PROTO)


@pytest.fixture(scope="module")
def released() -> dict[str, Schema]:
    return {version: read_schema(RELEASED / version) for version in VERSIONS}


def _of_events(schema: Schema) -> set[str]:
    """Message and field of everything in an event."""
    event = schema.messages[ENVELOPE]
    messages = [event, *(field.message_type for field in event.oneofs_by_name["body"].fields)]
    return {f"{message.name}.{field.name}" for message in messages for field in message.fields}


def test_releases_are_versions_that_we_read() -> None:
    assert VERSIONS
    assert set(VERSIONS) <= ROUTES.keys()
    for version in VERSIONS:
        assert sorted(str(path.relative_to(RELEASED / version)) for path in (RELEASED / version).rglob("*.*")) == FILES


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_breaks_a_released_schema(version: str, released: dict[str, Schema], current: Schema) -> None:
    assert [change for change in compare(released[version], current) if change.breaks] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_versions_says_what_was_added_since(
    version: str, released: dict[str, Schema], current: Schema
) -> None:
    assert _of_events(current) - _of_events(released[version]) == added_after(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_readers_of_a_release_refuse_any_later_field_that_is_marked(version: str, released: dict[str, Schema]) -> None:
    """They know the numbers of the envelope's fields; a mark of a body's field is none of them."""
    known = {field.number for field in released[version].messages[ENVELOPE].fields}
    added = [field.path for name, fields in ADDED.items() if parse(name) > parse(version) for field in fields]
    assert not known & {MARK_OF_FIELD[path] for path in added}


def _unknown_in(message: Any) -> list[int]:
    found = [field.field_number for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None and field.label != field.LABEL_REPEATED:
            found += _unknown_in(value)
    return found


def _readers() -> dict[str, Any]:
    found = {}
    for version in VERSIONS:
        pool: Any = descriptor_pool.DescriptorPool()
        schema = read_schema(RELEASED / version)
        pool.AddSerializedFile(schema.messages[ENVELOPE].file.serialized_pb)
        found[version] = message_factory.GetMessageClass(pool.FindMessageTypeByName(ENVELOPE))
    return found


READERS = _readers()


@given(events(with_provenance=True))
def test_a_released_reader_knows_every_field_of_what_has_gone_down_to_it(event: ev.Event) -> None:
    for version, reader in READERS.items():
        try:
            older = downcast(wire_event(event), version).event
        except CriticalFieldsLostError:
            continue
        read = reader.FromString(older.SerializeToString())
        assert _unknown_in(read) == []
        assert read.SerializeToString(deterministic=True) == older.SerializeToString(deterministic=True)
