"""Small plots as HTML: geometry in an SVG that stretches with its box, labels as text beside it.

Labels stay the same size on a phone and on a wide screen, because only the geometry is scaled; strokes keep their width
(`non-scaling-stroke` in the style sheet). Text that comes from data is escaped here.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from jobs.ops.figures import axis_time, compact

WIDTH = 1000
"""Of every viewBox; heights are HEIGHT or STRIP_HEIGHT."""
HEIGHT = 200
STRIP_HEIGHT = 20

_MINUTE_US = 60_000_000
_TIME_STEPS_US = tuple(
    minutes * _MINUTE_US for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10_080)
)
_SHORT_STEPS_US = tuple(seconds * 1_000_000 for seconds in (1, 2, 5, 10, 20))


class TimeAxis(NamedTuple):
    """The buckets that all plots of a report share."""

    start_us: int
    bucket_us: int
    buckets: int

    @property
    def span_us(self) -> int:
        """From the start of the first bucket to the end of the last."""
        return self.bucket_us * self.buckets

    def x(self, at_us: float) -> float:
        """Horizontal place of a time in a viewBox, kept within it."""
        return min(max((at_us - self.start_us) / self.span_us, 0.0), 1.0) * WIDTH

    def ticks_us(self, most: int = 6) -> list[int]:
        """Round times of the day, at most `most` of them."""
        steps = [*_SHORT_STEPS_US, *_TIME_STEPS_US]
        step = next((step for step in steps if self.span_us <= step * most), None)
        if step is None:
            step = -(-self.span_us // (most * _TIME_STEPS_US[-1])) * _TIME_STEPS_US[-1]
        first = -(-self.start_us // step) * step
        return list(range(first, self.start_us + self.span_us, step))


def value_ticks(highest: float, most: int = 4) -> list[float]:
    """Round values from 0 up to `highest`.

    >>> value_ticks(64_800)
    [0.0, 20000.0, 40000.0, 60000.0]
    """
    if highest <= 0:
        return [0.0]
    size = 10.0 ** (len(str(int(highest))) if highest >= 1 else 0)
    while size > highest:
        size /= 10
    step = next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10) if highest / (size * part) <= most)
    return [step * index for index in range(int(highest / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Scale(NamedTuple):
    """Vertical scale from 0 to `highest`."""

    highest: float
    height: int = HEIGHT

    def y(self, value: float) -> str:
        """Vertical place in the viewBox."""
        return _number(self.height - min(max(value / self.highest, 0.0), 1.0) * self.height)


def line(axis: TimeAxis, scale: Scale, values: Sequence[float], name: str) -> str:
    """A line through the middles of the buckets, with the area under it filled."""
    points = [f"{_number((index + 0.5) * WIDTH / axis.buckets)} {scale.y(value)}" for index, value in enumerate(values)]
    path = "M" + "L".join(points)
    first, last = points[0].split()[0], points[-1].split()[0]
    area = f"{path}L{last} {scale.height}L{first} {scale.height}Z"
    return f'<path class="area {name}" d="{area}"/><path class="line {name}" d="{path}"/>'


def steps(axis: TimeAxis, scale: Scale, points: Sequence[tuple[int, float | None]], name: str) -> str:
    """A step line: each value holds until the next point; None leaves a gap."""
    commands: list[str] = []
    is_drawn = False
    for index, (from_us, value) in enumerate(points):
        until_us = points[index + 1][0] if index + 1 < len(points) else axis.start_us + axis.span_us
        if value is None:
            is_drawn = False
            continue
        x, y = _number(axis.x(from_us)), scale.y(value)
        commands.append(f"{f'V{y}' if is_drawn else f'M{x} {y}'}H{_number(axis.x(until_us))}")
        is_drawn = True
    return f'<path class="step {name}" d="{"".join(commands)}"/>' if commands else ""


def bars(axis: TimeAxis, scale: Scale, values: Sequence[float], name: str, base: Sequence[float] | None = None) -> str:
    """A bar for each bucket that has a value, standing on `base`."""
    width = WIDTH / axis.buckets
    parts: list[str] = []
    for index, value in enumerate(values):
        if value > 0:
            foot = base[index] if base is not None else 0
            left, right = _number(index * width), _number((index + 1) * width)
            parts.append(f"M{left} {scale.y(foot)}V{scale.y(foot + value)}H{right}V{scale.y(foot)}Z")
    return f'<path class="bar {name}" d="{"".join(parts)}"/>' if parts else ""


def stacked(axis: TimeAxis, scale: Scale, series: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Bars of several series on top of each other, the first at the bottom."""
    base: list[float] = [0] * axis.buckets
    drawn: list[str] = []
    for name, numbers in series:
        drawn.append(bars(axis, scale, numbers, name, base))
        base = [low + number for low, number in zip(base, numbers, strict=True)]
    return "".join(drawn)


def marks(axis: TimeAxis, counts: Sequence[int], classes: Sequence[tuple[int, str]], share: float = 1.0) -> str:
    """A mark for each bucket with a count, of the last of `classes` (least count, name) that it reaches.

    `share` of the strip's height is marked, from its foot.
    """
    scale = Scale(1.0, STRIP_HEIGHT)
    names = [next((name for least, name in reversed(classes) if number >= least), None) for number in counts]
    return "".join(bars(axis, scale, [share if mark == name else 0 for mark in names], name) for _, name in classes)


def _svg(content: str, label: str, height: int, css_class: str) -> str:
    return (
        f'<svg class="{css_class}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{content}</svg>'
    )


def plot(
    axis: TimeAxis,
    scale: Scale,
    content: str,
    *,
    label: str,
    unit: str,
    remark: str = "",
    size: str = "",
    below: str = "",
) -> str:
    """A plot with its axes. `label` says what it shows for those who can't see it; `unit` heads the value axis."""
    ticks = [tick for tick in value_ticks(scale.highest) if tick <= scale.highest]
    grid = "".join(f'<path class="grid" d="M0 {scale.y(tick)}H{WIDTH}"/>' for tick in ticks)
    values = "".join(
        f'<span style="top:{100 - tick / scale.highest * 100:.2f}%">{compact(tick)}</span>' for tick in ticks
    )
    times = "".join(
        f'<span style="left:{axis.x(at_us) / WIDTH * 100:.2f}%">{axis_time(at_us, axis.span_us)}</span>'
        for at_us in axis.ticks_us()
    )
    return (
        f'<div class="plot {size}"><div class="unit"><span>{escape(unit)}</span><span>{escape(remark)}</span></div>'
        f'<div class="field"><div class="values" aria-hidden="true">{values}</div>'
        f"{_svg(grid + content, label, scale.height, 'main')}</div>{below}"
        f'<div class="times" aria-hidden="true">{times}</div></div>'
    )


def strip(content: str, *, label: str) -> str:
    """A low band of marks under a plot, on the same time axis."""
    return f'<div class="strip">{_svg(content, label, STRIP_HEIGHT, "marks")}</div>'
