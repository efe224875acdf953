"""Reading a schema: .proto files, a folder of them, or a set of descriptors that a compiler wrote.

Descriptors need nothing beyond protobuf. Text of .proto files is read by protoc itself, so that it means here what it
means to whoever compiles it: the one of grpcio-tools where that is installed, else `protoc` on the PATH.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from jobs.ops.schema_diff.compare import Schema

MAX_BYTES: Final = 64 << 20
"""Largest set of descriptors; a thousand .proto files take about 10 MB."""

_COMPILE_SECONDS: Final = 120
_WELL_KNOWN: Final = "google/protobuf/"


class SchemaSourceError(ValueError):
    """A schema that can't be read; the message names the file and the remedy."""


def read_schema(path: Path) -> Schema:
    """The schema at `path`. Raises SchemaSourceError.

    A folder holds .proto files, and their imports start from it; a single .proto file's imports start from its folder.
    Any other file is a FileDescriptorSet with its imports.
    """
    if path.is_dir():
        found = sorted(str(file.relative_to(path)) for file in path.rglob("*.proto"))
        if not found:
            raise SchemaSourceError(f"{path}: there is no .proto file in this folder")
        return schema_of(_compiled(path, path, found), path)
    if not path.is_file():
        raise SchemaSourceError(f"{path}: there is no such file or folder")
    if path.suffix == ".proto":
        return schema_of(_compiled(path, path.parent, [path.name]), path)
    return schema_of(_descriptors(path), path)


def _descriptors(path: Path) -> FileDescriptorSet:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SchemaSourceError(f"{path}: has more than {MAX_BYTES >> 20} MiB; is it a FileDescriptorSet?")
        found = FileDescriptorSet.FromString(path.read_bytes())
    except OSError as error:
        raise SchemaSourceError(f"{path}: {error.strerror or error}") from error
    except (DecodeError, UnicodeDecodeError):
        found = FileDescriptorSet()
    if not any(file.name for file in found.file):
        raise SchemaSourceError(
            f"{path}: neither a .proto file nor a FileDescriptorSet; write one with "
            "`protoc --include_imports --descriptor_set_out=FILE` or `buf build -o FILE.binpb`"
        )
    return found


# --- the compiler -------------------------------------------------------------------------------------------------


def _compiled(path: Path, root: Path, names: list[str]) -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "descriptors"
        command = [*_compiler(path), f"-I{root}", "--include_imports", f"--descriptor_set_out={target}", *names]
        try:
            done = subprocess.run(  # noqa: S603 - names come from the folder and are arguments, not a shell's
                command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SchemaSourceError(f"{path}: protoc could not be run: {error}") from error
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"protoc ended with status {done.returncode}"]
            hint = ""
            if any("was not found" in line for line in said):
                hint = "\nimports start from the folder that is named: name the one that they start from"
            raise SchemaSourceError("\n".join(f"{path}: {line}" for line in said[:10]) + hint)
        return _descriptors(target)


def _compiler(path: Path) -> list[str]:
    if find_spec("grpc_tools") is not None:
        return [sys.executable, "-m", "grpc_tools.protoc", f"-I{resources.files('grpc_tools') / '_proto'}"]
    found = shutil.which("protoc")
    if found is None:
        raise SchemaSourceError(
            f"{path}: no protoc to read .proto files with; `pip install grpcio-tools` or install protoc, or name a "
            "FileDescriptorSet, which needs none"
        )
    return [found]


# --- from descriptors to a schema ---------------------------------------------------------------------------------


def schema_of(found: FileDescriptorSet, path: Path) -> Schema:
    """The schema of descriptors, linked. Files of google/protobuf/ are none of the author's, and left out."""
    try:
        files = _linked(found)
    except TypeError as error:
        # Whatever does not link is one to protobuf: a name that stands twice, a type that is not there.
        raise SchemaSourceError(f"{path}: its descriptors do not fit together: {error}") from error
    own = [file for file in files if not file.name.startswith(_WELL_KNOWN)]
    messages = {it.full_name: it for file in own for it in _messages(file.message_types_by_name.values())}
    enums = {it.full_name: it for file in own for it in file.enum_types_by_name.values()}
    enums.update((it.full_name, it) for message in messages.values() for it in message.enum_types)
    services = {it.full_name: it for file in own for it in file.services_by_name.values()}
    return Schema(messages, enums, services, frozenset(file.package for file in own))


def _linked(found: FileDescriptorSet) -> list[Any]:
    """The files of a set, in any order there, each after what it imports. Raises TypeError where they do not fit."""
    pool: Any = descriptor_pool.DescriptorPool()
    waiting = {file.name: file for file in found.file}
    imported = {name for file in found.file for name in file.dependency}
    waiting.update((name, _well_known(name)) for name in sorted(imported - waiting.keys()))
    linked: dict[str, Any] = {}
    while waiting:
        ready = [name for name, file in waiting.items() if all(one in linked for one in file.dependency)]
        if not ready:
            raise TypeError(f"{', '.join(sorted(waiting)[:5])} import each other")
        for name in ready:
            linked[name] = pool.AddSerializedFile(waiting.pop(name).SerializeToString())
    return [linked[name] for name in dict.fromkeys(file.name for file in found.file)]


def _well_known(name: str) -> FileDescriptorProto:
    """A file that protobuf itself brings along. What it imports is of the same kind and imports no more."""
    known = FileDescriptorProto()
    try:
        file = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2") if _is_well_known(name) else None
    except ImportError:
        file = None
    if file is None:
        raise TypeError(f"{name} is imported and not there; write the set with --include_imports")
    file.DESCRIPTOR.CopyToProto(known)
    return known


def _is_well_known(name: str) -> bool:
    return re.fullmatch(r"google/protobuf/[a-z_]+\.proto", name) is not None


def _messages(found: Any) -> Iterator[Any]:
    for message in found:
        yield message
        yield from _messages(message.nested_types)
