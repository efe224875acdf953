"""Whatever bytes a file holds, the job ends, and every record is decided or a dead letter."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.admission import build
from jobs.ops.outputs import dead_letters_of
from jobs.wiring.embedded import run
from jobs.wiring.environment import Folders
from jobs.wiring.event_files import length_prefix
from jobs.wiring.settings import load_settings
from schemas.dead_letters import WHOLE_RECORD
from tests.bench.workload import batches, traffic, uniform
from tests.pipeline.conftest import DEMO_POLICIES
from tests.pipeline.decided import as_set, by_job, in_process
from udfs.domain.limiter import LimiterPolicy

RECORDS = 100_000


def fuzzed(good: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """Noise, nothing, and batches that were cut, flipped or run together."""
    for _ in range(RECORDS):
        kind = rng.randrange(5)
        record = rng.choice(good)
        if kind == 0:
            yield rng.randbytes(rng.randrange(60))
        elif kind == 1:
            yield record[: rng.randrange(len(record))]
        elif kind == 2:
            damaged = bytearray(record)
            for _ in range(rng.randrange(1, 6)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            yield bytes(damaged)
        elif kind == 3:
            yield record + rng.randbytes(rng.randrange(10))
        else:
            yield record


@pytest.mark.slow
def test_a_hundred_thousand_fuzzed_records(demo_policies: tuple[LimiterPolicy, ...], tmp_path: Path) -> None:
    rng = random.Random(11)
    good = [record for _, record in batches(traffic(uniform(50, rng), 400, 1_700_000_000_000_000), size=6)]
    log = tmp_path / "fuzzed.pb"
    with log.open("wb") as out:
        for record in fuzzed(good, rng):
            out.write(length_prefix(len(record)) + record)

    settings = load_settings(input=(log,), policies=DEMO_POLICIES, output=tmp_path / "out")
    job = run("fuzz", build, settings)
    dead = list(dead_letters_of(Folders.below(settings.output)))
    whole = [letter for letter in dead if letter.index == WHOLE_RECORD]
    # A record reached the fold, where it may have had whole or bad events, or was put aside by the reader.
    unread = {letter.offset for letter in whole}
    assert job.counts["batches"] + len(unread) >= RECORDS
    assert len(whole) > RECORDS / 20
    assert len(dead) > RECORDS / 4

    expected, expected_dead = in_process([log], demo_policies)
    assert as_set(by_job(settings.output)) == as_set(expected)
    assert Counter(dead) == Counter(expected_dead)
