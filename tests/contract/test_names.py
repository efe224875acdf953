"""Names that outlive a deploy, against what was committed: savepoints find their state by them, dashboards metrics."""

from jobs.wiring.names import ADMISSION_JOB, INGEST_JOB, Uid
from jobs.wiring.settings import AdmissionSettings, IngestSettings
from schemas.topics import shard_of
from tests.conftest import Golden
from tests.limiter_world import Direct, at, chunk, completed, limit, policy, prompt
from udfs.domain.anomaly import Anomaly
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.stamping import StampingFold
from udfs.domain.limiter import LimiterFold
from udfs.operators.keyed_fold import COUNTS, DEAD_LETTERS
from udfs.operators.shard_fold import KEY_PREFIX, LOG_FORM, META_FORM, META_KEY
from udfs.operators.shard_keys import MAX_PARALLELISM, routing_keys
from udfs.operators.stored_key import HEADER_FORM, StoredKey, pack, unpack


def test_names_are_those_that_were_committed(golden: Golden) -> None:
    golden.check(
        "names.json",
        {
            "jobs": [ADMISSION_JOB, INGEST_JOB],
            "uids": {uid.name: uid.value for uid in Uid},
            "states": {fold: [fold, f"{fold}-meta", f"{fold}-log"] for fold in (LimiterFold.name, StampingFold.name)},
            "keys_in_state": {"key": KEY_PREFIX, "meta": META_KEY},
            "forms": {"key": HEADER_FORM, "meta": META_FORM, "log": LOG_FORM},
            "state_versions": {fold.name: fold.version for fold in (LimiterFold, StampingFold)},
            "side_outputs": [DEAD_LETTERS.tag_id, COUNTS.tag_id],
            "anomalies": {anomaly.name: anomaly.value for anomaly in Anomaly},
            "settings": sorted(AdmissionSettings.model_fields),
            "ingest_settings": sorted(IngestSettings.model_fields),
            "formats": sorted(FORMATS),
            "max_parallelism": MAX_PARALLELISM,
            "routing_keys": list(routing_keys(32)),
            "shards": {tenant: shard_of(tenant) for tenant in ("acme", "", "tenant-7", "täglich")},
        },
    )


def _stored() -> bytes:
    """A tenant with a request in every place: running, expired, refused, ended."""
    driver = Direct(policy(limit(1_000), silence_timeout_us=5_000_000))
    driver.tell(prompt("expired", at(0), 10, max_tokens=10), chunk("expired", at(1), cumulative=3))
    driver.tell(prompt("ended", at(7), 10, max_tokens=10), completed("ended", at(8), (10, 4)))
    driver.tell(prompt("refused", at(8), 5_000, max_tokens=1), prompt("running", at(9), 10, max_tokens=20))
    driver.tell(chunk("running", at(10), cumulative=7))
    return pack(StoredKey(LimiterFold.version, 41, at(10), 0, LimiterFold().dump(driver.state)))


def test_bytes_of_state_are_those_that_were_committed(golden: Golden) -> None:
    golden.check(f"limiter_state_v{LimiterFold.version}.json", _stored().hex())


def test_committed_bytes_of_state_are_read(golden: Golden) -> None:
    hexed = golden.read("limiter_state_v1.json")
    assert isinstance(hexed, str)
    fold = LimiterFold()
    stored = unpack(bytes.fromhex(hexed), fold.name, fold.version, fold.upgrades)
    state = fold.load(stored.state)
    assert (stored.applied, stored.clock_us, state.tenant) == (41, at(10), "acme")
    assert list(state.requests) == [("running", 0)]
    assert [key for key, _ in state.ended] == ["expired", "ended", "refused"]
