"""A change between two versions of a schema."""

from enum import Enum
from typing import Final, NamedTuple


class Form(str, Enum):
    """A form in which messages are written, and which a change may break."""

    WIRE = "wire"
    JSON = "json"


NOTHING: Final[tuple[Form, ...]] = ()
WIRE: Final = (Form.WIRE,)
JSON: Final = (Form.JSON,)
BOTH: Final = (Form.WIRE, Form.JSON)


class Change(NamedTuple):
    """One change: its kind, the message, field or value where it is, the forms that it breaks, and why."""

    rule: str
    where: str
    breaks: tuple[Form, ...]
    detail: str
