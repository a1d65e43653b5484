"""Fill a folder with everything that a node without a network needs: `make wheelhouse` calls `wheelhouse.py FOLDER`.

One folder serves all the Pythons below on this machine's architecture. Each gets a requirements file with hashes,
and `install` (a shell script) makes a virtual environment of it with whatever `python3` the node has.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# What system Pythons of Ubuntu 22.04 and later, Debian 12 and later and RHEL 9 can load (glibc 2.28).
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

INSTALL = """\
#!/bin/sh
# install FOLDER: aibench-tui from the wheels beside this file into a new virtual environment, without a network.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
requirements=$here/requirements-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
[ -n "${1:-}" ] || { echo "usage: install FOLDER" >&2; exit 2; }
[ -f "$requirements" ] || { echo "$python has no wheels here; name another: PYTHON=PATH install FOLDER" >&2; exit 2; }
# Without ensurepip, which Debian packs apart: pip runs out of its own wheel.
"$python" -m venv --without-pip "$1"
"$1/bin/python" "$(ls "$here"/pip-*.whl)/pip" install --quiet --no-index --find-links "$here" \\
    --require-hashes --requirement "$requirements"
echo "Installed: $1/bin/aibench-tui"
"""


def main(target: Path) -> None:
    """Replace `target` with a full wheelhouse."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    pip("wheel", "--no-deps", "--wheel-dir", str(target), str(ROOT))
    pip("download", "--no-deps", "--only-binary=:all:", "--python-version", PYTHONS[0], "--dest", str(target), "pip")
    (own,) = target.glob("aibench_tui-*.whl")
    for python in PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            download(own, python, Path(folder))
            wheels = sorted(Path(folder).glob("*.whl"))
            (target / f"requirements-{python}.txt").write_text("".join(map(requirement, wheels)))
            for wheel in wheels:
                shutil.copy(wheel, target)
    (target / "install").write_text(INSTALL)
    (target / "install").chmod(0o755)
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{target}: {size / 1e6:.1f} MB for Python {', '.join(PYTHONS)} on {platform.machine()}.")
    print(f"Copy the folder to the node; there: sh {target.name}/install ~/aibench")


def download(own: Path, python: str, folder: Path) -> None:
    """Our wheel and all that it needs on `python`, as wheels, into `folder`."""
    platforms = [f"--platform={name}_{platform.machine()}" for name in PLATFORMS]
    # pip reads the environment markers of the Python that it runs on, so what only 3.10 needs is asked for by name.
    extra = ["tomli>=2,<3"] if python == "3.10" else []
    choice = ["--only-binary=:all:", "--python-version", python, *platforms]
    pip("download", *choice, "--dest", str(folder), str(own), *extra)


def requirement(wheel: Path) -> str:
    """A line that admits this very file."""
    name, version = re.split("-", wheel.name)[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def pip(*arguments: str) -> None:
    """Run this interpreter's pip, which must succeed."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
