"""One line of a bench's result."""

import msgspec


class Figure(msgspec.Struct):
    """A figure, what it is measured against, and their ratio (rates: higher is better; times and sizes: lower)."""

    name: str
    value: float
    unit: str
    reference: str
    reference_value: float
    aim: str = ""

    @property
    def ratio(self) -> float:
        """value / reference."""
        return self.value / self.reference_value
