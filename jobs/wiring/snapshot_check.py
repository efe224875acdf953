"""Before a job starts from a snapshot: whether it can. Flink itself finds out when tasks fail, or not at all.

Reads the snapshot's own metadata with Flink's classes, on whatever file system it lies: the operators that have state,
and the names of their states, one of which tells the form of our bytes (udfs/operators/state_form.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from udfs.operators.shard_keys import MAX_PARALLELISM
from udfs.operators.state_form import StateForm, form_in, why_unreadable

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment


class SnapshotMismatchError(ValueError):
    """A snapshot that this job can't go on from; the message says why and what helps."""


def check_snapshot(env: "StreamExecutionEnvironment", fold: str, fold_uid: str, form: StateForm) -> None:
    """Raise SnapshotMismatchError unless the snapshot that the job is to start from, if any, fits it.

    Call when the whole job is built. `fold_uid` is the uid of the operator of `fold`, `form` what this code writes.
    """
    path = _snapshot_path(env)
    if path is None:
        return
    ours = _operators(env)
    (fold_id,) = (operator for operator, uid in ours.items() if uid == fold_uid)
    try:
        states = {state.getOperatorID().toHexString(): state for state in _stored(path)}
        names = _state_names(states[fold_id]) if fold_id in states else frozenset()
    except Py4JJavaError as error:
        said = error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName()
        cause = str(said).partition("\n")[0]
        raise SnapshotMismatchError(f"{path} can't be read as a savepoint or checkpoint: {cause}") from error
    if fold_id not in states:
        raise SnapshotMismatchError(f"{path} has no state of {fold_uid}: it is of another job, or of files not Kafka")
    for operator, state in states.items():
        if operator not in ours and _has_state(state):
            raise SnapshotMismatchError(
                f"{path} has state of an operator that this job does not have ({operator}): it is of another release; "
                "start that, or an older snapshot"
            )
    if states[fold_id].getMaxParallelism() != MAX_PARALLELISM:
        raise SnapshotMismatchError(
            f"{path} has {states[fold_id].getMaxParallelism()} key groups, this job {MAX_PARALLELISM}: "
            "it was written with another pipeline.max-parallelism and can't be read"
        )
    forms = [found for name in names if (found := form_in(name, fold)) is not None]
    for stored in forms:
        why = why_unreadable(stored, form)
        if why is not None:
            raise SnapshotMismatchError(f"{path}: {why}")


def _jvm() -> Any:
    from pyflink.java_gateway import get_gateway

    return get_gateway().jvm


def _each(collection: Any) -> Iterator[Any]:
    """What a Java collection holds; py4j walks over lists and maps alone."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _snapshot_path(env: "StreamExecutionEnvironment") -> str | None:
    options = _jvm().org.apache.flink.configuration.StateRecoveryOptions
    path: str | None = env._j_stream_execution_environment.getConfiguration().get(options.SAVEPOINT_PATH)  # noqa: SLF001 - PyFlink has no other way
    return path


def _operators(env: "StreamExecutionEnvironment") -> dict[str, str]:
    """Uid, or name where it has none, of every operator of the job, by the id under which snapshots keep its state."""
    graph = env._j_stream_execution_environment.getStreamGraph(False)  # noqa: SLF001 - as above
    hasher = _jvm().org.apache.flink.streaming.api.graph.StreamGraphHasherV2()
    ids = {number: bytes(digest).hex() for number, digest in hasher.traverseStreamGraphAndGenerateHashes(graph).items()}
    nodes = {node.getId(): node for node in _each(graph.getStreamNodes())}
    return {ids[number]: node.getTransformationUID() or node.getOperatorName() for number, node in nodes.items()}


def _stored(path: str) -> Iterator[Any]:
    flink = _jvm().org.apache.flink
    java = _jvm().java
    storage = flink.runtime.state.filesystem.AbstractFsCheckpointStorageAccess
    stream = java.io.DataInputStream(storage.resolveCheckpointPointer(path).getMetadataHandle().openInputStream())
    try:
        loader = java.lang.Thread.currentThread().getContextClassLoader()
        found = flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(stream, loader, path)
        yield from _each(found.getOperatorStates())
    finally:
        stream.close()


def _has_state(operator: Any) -> bool:
    return bool(operator.getStateSize())


def _state_names(operator: Any) -> frozenset[str]:
    """Names of the keyed states of an operator, from the head of what each subtask wrote."""
    flink = _jvm().org.apache.flink
    loader = _jvm().java.lang.Thread.currentThread().getContextClassLoader()
    names: set[str] = set()
    for subtask in _each(operator.getStates()):
        for handle in _each(subtask.getManagedKeyedState()):
            kind = handle.getClass().getSimpleName()
            head = handle.getMetaDataStateHandle() if kind.startswith("IncrementalRemote") else handle
            stream = head.openInputStream()
            try:
                proxy = flink.runtime.state.KeyedBackendSerializationProxy(loader)
                proxy.read(flink.core.memory.DataInputViewStreamWrapper(stream))
                names.update(info.getName() for info in _each(proxy.getStateMetaInfoSnapshots()))
            finally:
                stream.close()
    return frozenset(names)
