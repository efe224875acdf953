"""Compile schemas/proto into schemas/gen, or check that what is committed is current.

python -m schemas.generate            # write
python -m schemas.generate --check    # exit 1 and name the files that differ
"""

import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PROTO = ROOT / "proto"
GEN = ROOT / "gen"


def compile_into(target: Path) -> None:
    """Write the Python modules and type stubs of every .proto file below `target`."""
    # Needed to generate only; jobs run without it.
    from grpc_tools import protoc  # noqa: PLC0415

    well_known = str(resources.files("grpc_tools") / "_proto")
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    out = [f"--python_out={target}", f"--pyi_out={target}"]
    status = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *out, *sources])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    for folder in {path.parent for path in target.rglob("*_pb2.py")}:
        for package in (folder, *folder.parents):
            if package == target:
                break
            (package / "__init__.py").touch()


def stale() -> list[str]:
    """Names of generated files that are missing, out of date or left over."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh_root = Path(scratch)
        compile_into(fresh_root)
        fresh = {path.relative_to(fresh_root): path.read_bytes() for path in fresh_root.rglob("*.py*")}
    committed = {
        path.relative_to(GEN): path.read_bytes()
        for path in GEN.rglob("*.py*")
        if "__pycache__" not in path.parts and path.parent != GEN
    }
    return sorted(str(name) for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> None:
    """Write schemas/gen, or with --check compare it."""
    if "--check" not in sys.argv[1:]:
        compile_into(GEN)
        return
    differing = stale()
    if differing:
        raise SystemExit(f"schemas/gen is not current, run `make proto`: {', '.join(differing)}")


if __name__ == "__main__":
    main()
