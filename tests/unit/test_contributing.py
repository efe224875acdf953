"""The example in CONTRIBUTING.md works as it stands there."""

import re
from pathlib import Path

from schemas.dead_letters import Position
from schemas.events import PromptSubmitted
from tests.bench.workload import batches, traffic
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_example_fold_speaks_at_every_hundredth_request() -> None:
    example, use = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.splitlines()) <= 11
    said: list[str] = []
    scope = {
        "PromptSubmitted": PromptSubmitted,
        "InProcessFold": InProcessFold,
        "PolicyLog": PolicyLog,
        "Position": Position,
        "batches": batches(traffic(lambda: 7, 250, 1_000_000), size=20),
        "print": said.append,
    }
    exec(example, scope)  # noqa: S102 - our own page
    exec(use, scope)  # noqa: S102 - as above
    assert said == ["tenant-7: 100 requests", "tenant-7: 200 requests"]
