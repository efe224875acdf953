"""The shape of a policy file: its fields, what each may hold, and the policies that they make.

Fields are named as they stand in the file; where the program counts in another unit, the attribute's name carries it.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jobs.wiring.located_yaml import YamlPath
from jobs.wiring.quantities import (
    COUNT_FORM,
    DURATION_FORM,
    INSTANT_FORM,
    SHARE_FORM,
    parse_count,
    parse_duration_us,
    parse_instant_us,
    parse_permille,
    parse_share,
    shown,
)
from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import MAX_WINDOW_US, SLOTS_PER_WINDOW, InvalidPolicyError, Limit, LimiterPolicy
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS

LEVELS: Final = {level.name.lower(): level for level in LimitLevel}
UNITS: Final = {unit.name.lower(): unit for unit in LimitUnit}
MODES: Final = {mode.name.lower(): mode for mode in DecisionMode}

_DEFAULT: Final = LimiterPolicy(id="default", match="*")
"""What a file leaves out is as policies have it anyway."""


class FieldsError(ValueError):
    """Fields that are right by themselves and not together: for each, where it stands and what is wrong."""

    def __init__(self, faults: list[tuple[YamlPath, str]]) -> None:
        super().__init__("; ".join(message for _, message in faults))
        self.faults = faults


def _is_text(value: object, form: str) -> str:
    if not isinstance(value, str):
        kind = "empty" if value is None else "a list" if isinstance(value, list) else "a mapping"
        raise ValueError(f"is {kind}, must be {form}")  # noqa: TRY004  # pydantic collects ValueErrors
    return value


def _name(value: object) -> str:
    text = _is_text(value, "a name")
    if not text or not text.isprintable():
        raise ValueError(f"is {shown(text)}, must be a name of printable characters")
    return text


def _within(
    parse: Callable[[str], int], form: str, lowest: int, highest: int, bounds: str | None = None
) -> BeforeValidator:
    bounds = bounds or f"from {lowest:,} to {highest:,}".replace(",", "_")

    def read(value: object) -> int:
        text = _is_text(value, form)
        quantity = parse(text)
        if not lowest <= quantity <= highest:
            raise ValueError(f"is {shown(text)}, must be {bounds}")
        return quantity

    return BeforeValidator(read)


def _count(lowest: int, highest: int) -> BeforeValidator:
    return _within(parse_count, COUNT_FORM, lowest, highest)


def _quantile(value: object) -> float:
    quantile = float(parse_share(_is_text(value, SHARE_FORM)))
    if not 0.0 < quantile < 1.0:
        raise ValueError(f"is {shown(str(value))}, must lie between 0 and 1")
    return quantile


# Where None is allowed it is the default alone: a field that is there and empty is refused.
Name: TypeAlias = Annotated[str, BeforeValidator(_name)]
WindowUs: TypeAlias = Annotated[
    int | None, _within(parse_duration_us, DURATION_FORM, SLOTS_PER_WINDOW, MAX_WINDOW_US, "from 60us to 31d")
]
SilenceUs: TypeAlias = Annotated[int, _within(parse_duration_us, DURATION_FORM, 1, MAX_WINDOW_US, "from 1us to 31d")]
InstantUs: TypeAlias = Annotated[int, _within(parse_instant_us, INSTANT_FORM, 0, 2**63 - 1)]
Permille: TypeAlias = Annotated[int, _within(parse_permille, SHARE_FORM, 0, 1000, SHARE_FORM)]
Tokens: TypeAlias = Annotated[int, _count(1, IMPLAUSIBLE_TOKENS - 1)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitEntry(_Entry):
    """An entry of `limits`."""

    name: Name
    level: Literal["tenant", "api_key", "user", "model"]
    unit: Literal["tokens", "requests", "streams"]
    limit: Annotated[int, _count(1, 2**53)]
    window_us: WindowUs = Field(default=None, alias="window")
    burst: Annotated[int | None, _count(1, 2**53)] = None
    mode: Literal["enforce", "shadow"] = "enforce"
    counts: tuple[Literal["prompt", "completion"], ...] = ("prompt", "completion")
    only: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> "LimitEntry":
        faults = list(self._faults())
        if faults:
            raise FieldsError(faults)
        try:
            self.to_limit()
        except InvalidPolicyError as error:
            raise FieldsError([((), str(error))]) from error
        return self

    def _faults(self) -> Iterator[tuple[YamlPath, str]]:
        if self.unit == "streams":
            for field in self.model_fields_set & {"window_us", "burst"}:
                yield (field.removesuffix("_us"),), "is not for streams, which are counted while they run: remove it"
        elif self.window_us is None:
            yield ("window",), f"is missing: {self.unit} are limited within a window, {DURATION_FORM}"
        if self.unit != "streams" and self.burst is not None and self.burst > self.limit:
            yield ("burst",), f"is {self.burst:_}, must be at most the limit of {self.limit:_}"
        if self.unit != "tokens" and "counts" in self.model_fields_set:
            yield ("counts",), f"chooses which tokens count, and {self.unit} are limited here: remove it"
        if not self.counts:
            yield ("counts",), "is an empty list, must name prompt, completion or both"
        if not self.only and "only" in self.model_fields_set:
            yield ("only",), f"is an empty list: name those who are limited, or remove it to limit every {self.level}"

    def to_limit(self) -> Limit:
        """The limit that it makes."""
        return Limit(
            name=self.name,
            level=LEVELS[self.level],
            unit=UNITS[self.unit],
            limit=self.limit,
            window_us=self.window_us or 0,
            burst=self.burst,
            mode=MODES[self.mode],
            counts_prompt="prompt" in self.counts,
            counts_completion="completion" in self.counts,
            only=frozenset(self.only),
        )


class PolicyEntry(_Entry):
    """An entry of `policies`. `limits` must be there, if need be as []: a policy never goes without by oversight."""

    id: Name
    tenant: Name
    effective_from_us: InstantUs = Field(default=0, alias="effective_from")
    traffic: Literal["live", "recorded"] = "live"
    limits: tuple[LimitEntry, ...]
    cached_weight_permille: Permille = Field(default=_DEFAULT.cached_weight_permille, alias="cached_weight")
    default_completion_tokens: Tokens = _DEFAULT.default_completion_tokens
    estimate_quantile: Annotated[float, BeforeValidator(_quantile)] = _DEFAULT.estimate_quantile
    estimate_after: Annotated[int, _count(1, 1_000_000)] = _DEFAULT.estimate_after
    extension_tokens: Tokens = _DEFAULT.extension_tokens
    silence_timeout_us: SilenceUs = Field(default=_DEFAULT.silence_timeout_us, alias="silence_timeout")
    remember_requests: Annotated[int, _count(1, 100_000)] = _DEFAULT.remember_requests
    max_subjects: Annotated[int, _count(1, 1_000_000)] = _DEFAULT.max_subjects

    def to_policy(self) -> LimiterPolicy:
        """The policy that it makes."""
        return LimiterPolicy(
            id=self.id,
            match=self.tenant,
            effective_from_us=self.effective_from_us,
            limits=tuple(entry.to_limit() for entry in self.limits),
            cached_weight_permille=self.cached_weight_permille,
            default_completion_tokens=self.default_completion_tokens,
            estimate_quantile=self.estimate_quantile,
            estimate_after=self.estimate_after,
            extension_tokens=self.extension_tokens,
            silence_timeout_us=self.silence_timeout_us,
            remember_requests=self.remember_requests,
            max_subjects=self.max_subjects,
            traffic_is_recorded=self.traffic == "recorded",
        )


class PolicyDocument(_Entry):
    """A policy file."""

    version: Literal["1"]
    policies: tuple[PolicyEntry, ...]
