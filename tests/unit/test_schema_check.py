"""`headrace schema check`: each kind of change, what it breaks by protobuf's own rules, and what the command says.

The verdicts follow https://protobuf.dev/programming-guides/proto3/#updating and buf's category WIRE_JSON
(https://buf.build/docs/breaking/rules/). Where bytes decide, protobuf itself is asked.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from jobs.ops.schema_command import schema_app
from jobs.ops.schema_diff.compare import compare
from jobs.ops.schema_diff.numbers import Numbers
from jobs.ops.schema_diff.sources import SchemaSourceError, read_schema, schema_of
from tests.critical_field import added_as_critical

Breaks = frozenset[str]
NONE: Breaks = frozenset()
WIRE: Breaks = frozenset({"wire"})
JSON: Breaks = frozenset({"json"})
BOTH: Breaks = frozenset({"wire", "json"})


class Case(NamedTuple):
    """A change, where it is told (without the package; "-": nowhere in particular), and what it breaks."""

    name: str
    old: str
    new: str
    where: str
    breaks: Breaks
    says: str = ""


def _within(name: str, where: str) -> str:
    return where if where == "-" else f"{name}.{where}" if where else name


def in_message(name: str, old: str, new: str, where: str, breaks: Breaks, says: str = "") -> Case:
    return Case(name, f"message M {{ {old} }}", f"message M {{ {new} }}", _within("M", where), breaks, says)


def in_enum(name: str, old: str, new: str, where: str, breaks: Breaks, says: str = "") -> Case:
    return Case(name, f"enum E {{ {old} }}", f"enum E {{ {new} }}", _within("E", where), breaks, says)


CASES = [
    # --- fields that come and go
    in_message("a field is added", "int32 a = 1;", "int32 a = 1; int32 b = 2;", "b", NONE),
    in_message("a field is removed", "int32 a = 1; int32 b = 2;", "int32 a = 1;", "b", BOTH, 'reserved "b"'),
    in_message("only its number is reserved", "int32 a = 1;", "reserved 1;", "a", JSON, 'reserved "a"'),
    in_message("only its name is reserved", "int32 a = 1;", 'reserved "a";', "a", WIRE, "reserved 1"),
    in_message("both are reserved", "int32 a = 1;", 'reserved 1; reserved "a";', "a", NONE),
    in_message("a range reserves it", "int32 a = 7;", 'reserved 5 to max; reserved "a";', "a", NONE),
    in_message("its number changes", "int32 a = 1;", "int32 a = 2;", "a", WIRE, "is now 2"),
    in_message("a number is reused", "int64 a = 1;", "string b = 1;", "a", BOTH, "another field"),
    in_message("a field is renamed", "int64 a = 1;", "int64 b = 1;", "a", JSON, "renamed to b"),
    in_message("its name in JSON changes", "int64 a = 1;", 'int64 a = 1 [json_name = "b"];', "a", JSON),
    in_message("two fields swap numbers", "int64 a = 1; string b = 2;", "int64 a = 2; string b = 1;", "a", BOTH),
    # --- reserved
    in_message("a reserved number is used", "reserved 2;", "int32 b = 2;", "b", WIRE),
    in_message("a reserved name is used", 'reserved "b";', "int32 b = 2;", "b", JSON),
    in_message("a reserved range shrinks", "reserved 5 to 9;", "reserved 5, 9;", "", WIRE, "6 to 8"),
    in_message("a reserved range is written otherwise", "reserved 5 to 9;", "reserved 5 to 6, 7 to 12;", "-", NONE),
    in_message("a reserved name is freed", 'reserved "b";', "", "", JSON),
    # --- types
    in_message("a wider integer", "int32 a = 1;", "int64 a = 1;", "a", JSON, "the same bytes"),
    in_message("a sign", "uint64 a = 1;", "int64 a = 1;", "a", JSON),
    in_message("zigzag", "int32 a = 1;", "sint32 a = 1;", "a", BOTH),
    in_message("zigzag widened", "sint32 a = 1;", "sint64 a = 1;", "a", JSON),
    in_message("a fixed width", "int64 a = 1;", "fixed64 a = 1;", "a", BOTH),
    in_message("a fraction", "int64 a = 1;", "double a = 1;", "a", BOTH),
    in_message("precision", "double a = 1;", "float a = 1;", "a", BOTH),
    in_message("text to bytes", "string a = 1;", "bytes a = 1;", "a", JSON),
    in_message("bytes to text", "bytes a = 1;", "string a = 1;", "a", BOTH),
    in_message("a message to bytes", "message X {} X a = 1;", "message X {} bytes a = 1;", "a", JSON),
    in_message("text to a message", "message X {} string a = 1;", "message X {} X a = 1;", "a", BOTH),
    in_message(
        "another message", "message X {} message Y {} X a = 1;", "message X {} message Y {} Y a = 1;", "a", BOTH
    ),
    in_message("an enum to a number", "enum X { O = 0; } X a = 1;", "enum X { O = 0; } int32 a = 1;", "a", JSON),
    in_message(
        "an enum with the same values",
        "enum X { O = 0; } enum Y { P = 0; } X a = 1;",
        "enum X { O = 0; } enum Y { P = 0; } Y a = 1;",
        "a",
        BOTH,
    ),
    # --- cardinality and presence
    in_message("singular to repeated", "string a = 1;", "repeated string a = 1;", "a", BOTH),
    in_message("repeated to singular", "repeated int32 a = 1;", "int32 a = 1;", "a", BOTH),
    in_message("it tells whether it is set", "int32 a = 1;", "optional int32 a = 1;", "a", NONE),
    in_message("it tells no more", "optional int32 a = 1;", "int32 a = 1;", "a", NONE),
    in_message("packing", "repeated int32 a = 1;", "repeated int32 a = 1 [packed = false];", "-", NONE),
    in_message("a map's values", "map<string, int32> a = 1;", "map<string, string> a = 1;", "AEntry.value", BOTH),
    in_message(
        "entries to a map",
        "message AEntries { string key = 1; int32 value = 2; } repeated AEntries a = 1;",
        "message AEntries { string key = 1; int32 value = 2; } map<string, int32> a = 1;",
        "a",
        BOTH,
    ),
    # --- oneofs
    in_message("into a oneof", "int32 a = 1; int32 b = 2;", "int32 b = 2; oneof o { int32 a = 1; }", "a", WIRE),
    in_message(
        "out of a oneof", "oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 b = 2; } int32 a = 1;", "a", WIRE
    ),
    in_message("to another oneof", "oneof o { int32 a = 1; }", "oneof p { int32 a = 1; }", "a", WIRE),
    in_message(
        "a field more in a oneof", "oneof o { int32 a = 1; }", "oneof o { int32 a = 1; int32 b = 2; }", "b", NONE
    ),
    in_message("optional to a oneof of the same name", "optional int32 a = 1;", "oneof _a { int32 a = 1; }", "-", NONE),
    # --- enums
    in_enum("a value is added", "A = 0;", "A = 0; B = 1;", "B", NONE),
    in_enum("a value is removed", "A = 0; B = 1;", "A = 0;", "B", BOTH),
    in_enum("its number alone is reserved", "A = 0; B = 1;", "A = 0; reserved 1;", "B", JSON),
    in_enum("number and name are reserved", "A = 0; B = 1;", 'A = 0; reserved 1; reserved "B";', "B", NONE),
    in_enum("a value is renamed", "A = 0; B = 1;", "A = 0; C = 1;", "B", JSON),
    in_enum("a value's number changes", "A = 0; B = 1;", "A = 0; B = 2;", "B", WIRE),
    in_enum("a reserved value is used", "A = 0; reserved 3;", "A = 0; B = 3;", "B", WIRE),
    in_enum("a reserved value is freed", "A = 0; reserved 3 to 4;", "A = 0; reserved 4;", "", WIRE, "3 is"),
    in_enum("an alias is added", "A = 0; B = 1;", "option allow_alias = true; A = 0; B = 1; C = 1;", "-", NONE),
    in_enum("an alias is removed", "option allow_alias = true; A = 0; B = 1; C = 1;", "A = 0; B = 1;", "C", JSON),
    in_enum("negative numbers", "A = 0; B = -1;", "A = 0; B = -1; C = -2;", "C", NONE),
    # --- what holds them
    Case("a message is added", "message M {}", "message M {} message N {}", "N", NONE),
    Case("a message is removed", "message M {} message N {}", "message M {}", "N", BOTH),
    Case("a message is renamed", "message M {}", "message N {}", "M", BOTH),
    Case("a message within one is removed", "message M { message N {} }", "message M {}", "M.N", BOTH),
    Case(
        "a message within one changes",
        "message M { message N { int32 a = 1; } }",
        "message M { message N {} }",
        "M.N.a",
        BOTH,
    ),
    Case("an enum is removed", "enum E { A = 0; } message M {}", "message M {}", "E", BOTH),
    Case(
        "an enum within a message",
        "message M { enum E { A = 0; B = 1; } }",
        "message M { enum E { A = 0; } }",
        "M.E.B",
        BOTH,
    ),
    Case("messages change places", "message M {} message N {}", "message N {} message M {}", "-", NONE),
    Case(
        "a method is added",
        "message M {} service S {}",
        "message M {} service S { rpc Do(M) returns (M); }",
        "S.Do",
        NONE,
    ),
    Case(
        "a method is removed",
        "message M {} service S { rpc Do(M) returns (M); }",
        "message M {} service S {}",
        "S.Do",
        BOTH,
    ),
    Case(
        "a method streams",
        "message M {} service S { rpc Do(M) returns (M); }",
        "message M {} service S { rpc Do(M) returns (stream M); }",
        "S.Do",
        BOTH,
    ),
    Case("a service is removed", "message M {} service S {}", "message M {}", "S", BOTH),
]

PROTO2 = [
    in_message("a required field is added", "", "required int32 a = 1;", "a", BOTH),
    in_message("a required field is removed", "required int32 a = 1;", 'reserved 1; reserved "a";', "a", BOTH),
    in_message("a field becomes required", "optional int32 a = 1;", "required int32 a = 1;", "a", BOTH),
    in_message(
        "another default", "optional int32 a = 1 [default = 3];", "optional int32 a = 1 [default = 4];", "a", BOTH
    ),
    in_message("a default is given", "optional int32 a = 1;", "optional int32 a = 1 [default = 4];", "a", BOTH),
    in_message("a group to a message", "optional group G = 1 {}", "message G {} optional G g = 1;", "g", BOTH),
]


class Compiled(NamedTuple):
    """Both sides of every case, each a file of its own package."""

    old: dict[str, FileDescriptorProto]
    new: dict[str, FileDescriptorProto]


def _compiled(folder: Path, texts: dict[str, str]) -> dict[str, FileDescriptorProto]:
    from grpc_tools import protoc

    for name, text in texts.items():
        (folder / name).write_text(text)
    target = folder / "all"
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={target}", *texts]) == 0
    return {file.name: file for file in FileDescriptorSet.FromString(target.read_bytes()).file}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """All in one call of protoc a side: one for each would take a minute."""
    sides = []
    for side in ("old", "new"):
        texts = {
            f"{syntax}_{at}.proto": f'syntax = "{syntax}"; package {syntax}_{at}; {getattr(case, side)}'
            for syntax, cases in (("proto3", CASES), ("proto2", PROTO2))
            for at, case in enumerate(cases)
        }
        sides.append(_compiled(tmp_path_factory.mktemp(side), texts))
    return Compiled(*sides)


@pytest.mark.parametrize(
    ("file", "case"),
    [
        pytest.param(f"{syntax}_{at}.proto", case, id=f"{syntax} {case.name}")
        for syntax, cases in (("proto3", CASES), ("proto2", PROTO2))
        for at, case in enumerate(cases)
    ],
)
def test_a_change_breaks_what_protobuf_says(compiled: Compiled, file: str, case: Case) -> None:
    old, new = (schema_of(FileDescriptorSet(file=[side[file]]), Path(file)) for side in compiled)
    package = file.removesuffix(".proto")

    found = compare(old, new)

    there = [change for change in found if change.where == f"{package}.{case.where}"]
    assert {form.value for change in there for form in change.breaks} == case.breaks, found
    if case.where != "-":
        assert there
        assert any(case.says in change.detail for change in there), there
    elif not case.breaks:
        assert not [change for change in found if change.breaks]
    assert compare(old, old) == []
    assert compare(new, new) == []


# --- types, asked of protobuf -------------------------------------------------------------------------------------

SCALARS: dict[str, list[Any]] = {
    "int32": [1, 5],
    "int64": [1, 5],
    "uint32": [1, 5],
    "uint64": [1, 5],
    "sint32": [1, 5],
    "sint64": [1, 5],
    "fixed32": [1, 5],
    "fixed64": [1, 5],
    "sfixed32": [1, 5],
    "sfixed64": [1, 5],
    "bool": [True],
    "float": [1.0, 5.0],
    "double": [1.0, 5.0],
    "string": ["a", "grün"],
    "bytes": [b"a", b"\xff"],
}


def _of_type(kind: str) -> FileDescriptorSet:
    file = FileDescriptorProto(name="m.proto", package="t", syntax="proto3")
    field = file.message_type.add(name="M").field.add(name="a", number=1, json_name="a")
    field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    field.label = FieldDescriptorProto.LABEL_OPTIONAL
    return FileDescriptorSet(file=[file])


def _message_of(kind: str) -> Any:
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(_of_type(kind).file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.M"))


def _reads_alike(written: str, read: str) -> bool:
    for value in SCALARS[written]:
        if read == "bool" and value == 5:
            # What a bool can't hold is not asked: a change within a group is for values that fit.
            continue
        try:
            found = _message_of(read).FromString(_message_of(written)(a=value).SerializeToString()).a
        except (DecodeError, UnicodeDecodeError):
            return False
        if (value.encode() if isinstance(value, str) else value) != (
            found.encode() if isinstance(found, str) else found
        ):
            return False
    return True


@pytest.mark.parametrize("old", SCALARS)
@pytest.mark.parametrize("new", SCALARS)
def test_types_are_alike_where_their_bytes_are(old: str, new: str) -> None:
    found = compare(*(schema_of(_of_type(kind), Path(kind)) for kind in (old, new)))
    broken = {form.value for change in found for form in change.breaks}
    if old == new:
        assert found == []
    else:
        # Numbers are asked both ways, for 5 is no bool; text may become bytes, and not the other way round.
        is_alike = _reads_alike(old, new) and (old == "string" or _reads_alike(new, old))
        # JSON is another for each two types, by range or by form.
        assert broken == (JSON if is_alike else BOTH)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda it: (it[0], it[0] + it[1]))),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda it: (it[0], it[0] + it[1]))),
)
def test_ranges_are_sets_of_numbers(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def as_set(spans: list[tuple[int, int]]) -> set[int]:
        return {number for start, end in spans for number in range(start, end)}

    assert {number for number in range(40) if number in Numbers(one)} == as_set(one)
    left = [(span.start, span.end) for span in Numbers(one).without(Numbers(other))]
    assert as_set(left) == as_set(one) - as_set(other)


# --- packages, files and the command ------------------------------------------------------------------------------

OLD = 'syntax = "proto3"; package a.v1; message M { int32 a = 1; }'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write_one(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_one


def check(*arguments: object) -> Any:
    return CliRunner().invoke(schema_app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_package_that_is_gone_is_told_once(write: Callable[[str, str], Path]) -> None:
    done = check(write("old.proto", OLD), write("new.proto", OLD.replace("a.v1", "a.v2")), "--json", "--breaking")
    assert done.exit_code == 1
    (change,) = json.loads(done.stdout)["changes"]
    assert (change["rule"], change["where"], change["breaks"]) == ("package-removed", "a.v1", ["wire", "json"])
    assert "a.v2" in change["detail"]


def test_the_same_schema_is_compatible(write: Callable[[str, str], Path]) -> None:
    done = check(write("old.proto", OLD), write("new.proto", f"// A word.\n{OLD}"))
    assert (done.exit_code, done.stdout) == (0, "Compatible.\n")


def test_a_change_is_told_with_its_place_and_what_it_breaks(write: Callable[[str, str], Path]) -> None:
    done = check(write("old.proto", OLD), write("new.proto", OLD.replace("int32 a", "int32 b")))
    assert done.exit_code == 1
    assert "M.a" in done.stdout
    assert "renamed to b" in done.stdout
    assert "Breaking: 1 change.\n" in done.stdout


def test_additions_can_be_left_out(write: Callable[[str, str], Path]) -> None:
    old, new = write("old.proto", OLD), write("new.proto", OLD.replace("{", "{ int32 b = 2;"))
    assert "M.b" in check(old, new).stdout
    assert check(old, new, "--breaking").stdout == "Compatible.\n"


def test_a_folder_is_a_root_of_imports(write: Callable[[str, str], Path]) -> None:
    for side in ("old", "new"):
        write(f"{side}/a/m.proto", OLD)
        write(
            f"{side}/b/n.proto",
            'syntax = "proto3"; package b; import "a/m.proto"; import "google/protobuf/timestamp.proto";'
            "message N { a.v1.M m = 1; google.protobuf.Timestamp at = 2; }",
        )
    root = write("new/b/k.proto", 'syntax = "proto3"; package b; message K {}').parents[1]
    done = check(root.parent / "old", root, "--json")
    assert done.exit_code == 0
    assert [change["where"] for change in json.loads(done.stdout)["changes"]] == ["b.K"]

    alone = check(root / "b", root)
    assert alone.exit_code == 2
    assert "name the one that they start from" in alone.stderr


def test_a_set_of_descriptors_needs_no_compiler(
    write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write("old.proto", OLD)
    first = tmp_path / "old.binpb"
    first.write_bytes(_of_type("int32").SerializeToString())
    second = tmp_path / "new.binpb"
    second.write_bytes(_of_type("string").SerializeToString())
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    monkeypatch.setattr("jobs.ops.schema_diff.sources.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert check(first, first).exit_code == 0
    assert check(first, second).exit_code == 1
    done = check(source, first)
    assert done.exit_code == 2
    assert "grpcio-tools" in done.stderr
    assert "FileDescriptorSet" in done.stderr


def test_a_set_may_be_in_any_order_and_leave_out_what_protobuf_has() -> None:
    user = FileDescriptorProto(name="n.proto", syntax="proto3", dependency=["m.proto", "google/protobuf/any.proto"])
    user.message_type.add(name="N").field.add(
        name="any", number=1, type=11, label=1, type_name=".google.protobuf.Any", json_name="any"
    )
    schema = schema_of(FileDescriptorSet(file=[user, *_of_type("int32").file]), Path("set"))
    assert sorted(schema.messages) == ["N", "t.M"]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (FileDescriptorProto(name="n.proto", dependency=["gone.proto"]), "gone.proto is imported and not there"),
        (FileDescriptorProto(name="n.proto", dependency=["n.proto"]), "import each other"),
        (FileDescriptorProto(name="n.proto", dependency=["google/protobuf/none.proto"]), "is imported and not there"),
    ],
)
def test_descriptors_that_do_not_fit_together_are_refused(file: FileDescriptorProto, says: str) -> None:
    with pytest.raises(SchemaSourceError, match=says):
        schema_of(FileDescriptorSet(file=[file]), Path("set"))


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_it_is_read_or_refused(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".binpb") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(SchemaSourceError):
            read_schema(Path(file.name))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("broken.proto", 'syntax = "proto3"; message M { int32 a = 0; }', "Field numbers must be positive"),
        ("text.pb", "no descriptors", "neither a .proto file nor a FileDescriptorSet"),
        ("empty/readme.txt", "", None),
    ],
)
def test_what_can_not_be_read_is_exit_status_2(
    write: Callable[[str, str], Path], name: str, text: str, says: str | None
) -> None:
    fine, path = write("fine.proto", OLD), write(name, text)
    if says is None:
        path, says = path.parent, "there is no .proto file in this folder"
    for arguments in ((fine, path), (path, fine)):
        done = check(*arguments, "--json")
        assert done.exit_code == 2
        assert done.stdout == ""
        assert says in done.stderr
        assert all(line.startswith("headrace: ") for line in done.stderr.splitlines())


def test_a_path_that_is_not_there_is_exit_status_2(tmp_path: Path) -> None:
    done = check(tmp_path / "none", tmp_path / "none")
    assert done.exit_code == 2
    assert "no such file or folder" in done.stderr


def test_help_has_examples() -> None:
    for command in ("check", "show"):
        done = CliRunner().invoke(schema_app, [command, "--help"])
        assert "Examples:" in done.stdout
        assert f"headrace schema {command}" in done.stdout


# --- what we have -------------------------------------------------------------------------------------------------


def our_versions() -> Any:
    return json.loads(CliRunner().invoke(schema_app, ["show", "--json"]).stdout)


def critical_in(shown: Any) -> list[str]:
    return [it["field"] for found in shown["versions"].values() for it in found["added"] if it["critical"]]


def test_our_versions_are_shown_with_their_routes_and_critical_fields() -> None:
    shown = our_versions()
    routes = {version: found["route"] for version, found in shown["versions"].items()}
    assert shown["current"] == "1.2.0"
    assert routes == {
        "1.0": "upcast",
        "1.1": "upcast",
        "1.2": "read",
        "newer 1.x": "read_if_known",
        "all else": "refuse",
    }
    assert {it["field"] for it in shown["versions"]["1.2"]["added"]} >= {"PromptSubmitted.resumed_at_token"}
    assert critical_in(shown) == []
    with added_as_critical("PromptSubmitted", "choices"):
        assert critical_in(our_versions()) == ["PromptSubmitted.choices"]


def test_a_person_is_told_the_same() -> None:
    with added_as_critical("PromptSubmitted", "choices"):
        said = CliRunner().invoke(schema_app, ["show"], env={"COLUMNS": "200"}).stdout
    assert "Events are read as schema 1.2.0." in said
    rows = [line.split()[:3] for line in said.splitlines()]
    assert ["1.2", "PromptSubmitted.resumed_at_token", "no"] in rows
    assert ["1.2", "PromptSubmitted.choices", "yes"] in rows
