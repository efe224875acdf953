"""Token-rate limits of a tenant: see `limiter` for the transitions and `meter` for the error bound."""

from udfs.domain.limiter.limiter import TRANSITIONS, LimiterFold
from udfs.domain.limiter.policy import InvalidPolicyError, Limit, LimiterPolicy
from udfs.domain.limiter.state import Phase, TenantState

__all__ = [
    "TRANSITIONS",
    "InvalidPolicyError",
    "Limit",
    "LimiterFold",
    "LimiterPolicy",
    "Phase",
    "TenantState",
]
