"""Says which frameworks an interpreter has. Run by path in any Python 3, so its syntax is an old one's.

`inspect_frameworks.py find` looks without importing; `inspect_frameworks.py torch|jax cpu|cuda` imports one and asks
it for devices. The answer is one JSON line on the original stdout: {"python", "executable", "prefix", "found":
{distribution: version}} or {"versions": {...}, "devices": n, "reason": "" | why no device can be used}.
"""

import os
import sys


def _forget_own_folder() -> None:
    """Keeps the files beside this one from being imported instead of an installed package of the same name."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]


_forget_own_folder()

import importlib.util  # noqa: E402 - only now is the path safe
import json  # noqa: E402
import re  # noqa: E402

_DISTRIBUTIONS = ("torch", "jax", "jaxlib", "numpy")


def main(arguments: "list[str]") -> int:
    """Answers one question; anything that goes wrong with a framework is an answer, not a failure."""
    answers = os.dup(1)
    os.dup2(2, 1)
    answer = find() if arguments == ["find"] else inspect(arguments[0], arguments[1])
    os.write(answers, (json.dumps(answer) + "\n").encode())
    sys.stderr.flush()
    os._exit(0)  # a framework's own shutdown may hang


def find() -> "dict[str, object]":
    """What is installed, by its metadata, without importing it."""
    return {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "found": {name: _version(name) for name in _DISTRIBUTIONS if _is_there(name)},
    }


def _is_there(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a folder without __init__.py has a spec, but no origin


def _version(name: str) -> str:
    try:
        from importlib.metadata import version
    except ImportError:
        return "of unknown version"
    try:
        return version(name)
    except Exception:
        return "of unknown version"


def inspect(framework: str, kind: str) -> "dict[str, object]":
    """Imports a framework and counts its devices of a kind."""
    versions = {}  # type: dict[str, str]
    try:
        count, reason = (_torch if framework == "torch" else _jax)(kind, versions)
    except BaseException as error:
        count, reason = 0, f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
    if _is_there("numpy"):
        versions["numpy"] = _version("numpy")
    return {"versions": versions, "devices": count, "reason": reason}


def _torch(kind: str, versions: "dict[str, str]") -> "tuple[int, str]":
    import torch

    versions["torch"] = str(torch.__version__)
    versions["torch_cuda"] = str(torch.version.cuda or "none")
    versions["torch_blas"] = _blas(torch.__config__.show())
    if kind == "cpu":
        return 1, ""
    if torch.version.cuda is None:
        return 0, f"torch {torch.__version__} is built without CUDA"
    versions["cudnn"] = str(torch.backends.cudnn.version())
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count, "" if count else f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU"


def _blas(config: str) -> str:
    """The BLAS of a torch build and its version: "mkl 2024.2", "open"; from torch.__config__.show()."""
    name = re.search(r"BLAS_INFO=(\w+)", config)
    version = re.search(r"oneAPI Math Kernel Library Version (\S+)", config)
    return " ".join(part for part in (name and name.group(1), version and version.group(1)) if part) or "unknown"


def _jax(kind: str, versions: "dict[str, str]") -> "tuple[int, str]":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # asking must not take the GPU's memory
    # Whatever the user prefers, as in the worker; the CPU beside it, since JAX without any platform gives no reason.
    os.environ["JAX_PLATFORMS"] = "cpu" if kind == "cpu" else f"{kind},cpu"
    import jax

    versions["jax"] = str(jax.__version__)
    versions["jaxlib"] = _version("jaxlib")
    devices = jax.devices("cpu" if kind == "cpu" else "gpu")
    versions["jax_platform"] = str(devices[0].client.platform_version).split("\n")[0]
    return len(devices), ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
