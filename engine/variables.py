"""The environment variables that count: what reaches a trial, what a fingerprint records, what is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

RUN_ID = "AIBENCH_RUN_ID"
TRIAL_ID = "AIBENCH_TRIAL_ID"
RUN_FOLDER = "AIBENCH_RUN_FOLDER"
TOKEN = "AIBENCH_TOKEN"  # noqa: S105 - the name of the variable; its value is new in every trial
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# These say who runs it and where, not how: they differ between shells that measure the same, and the interpreter's
# path says more than the environment it is from.
_PLACES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV", "CONDA_PREFIX"})

_NAMES = frozenset({"LANG", "LD_LIBRARY_PATH", "PYTHONPATH"})

_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "XLA_", "JAX_", "TORCH_",
    "PYTORCH_", "ROCR_", "HIP_", "HSA_",
)  # fmt: skip

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)

# Devices are chosen by the plan; a compilation cache from before would serve one arm and not the other.
_NEVER = re.compile("_VISIBLE_DEVICES$|^JAX_COMPILATION_CACHE_DIR$|^JAX_PERSISTENT_CACHE_")


def is_recorded(name: str) -> bool:
    """Whether a variable changes what a framework does or sees, so that a fingerprint keeps it (redacted if secret)."""
    return name in _NAMES or name.startswith(_PREFIXES)


def is_secret(name: str) -> bool:
    """Whether a variable's name speaks of a secret."""
    return bool(_SECRET.search(name))


def is_allowed(name: str) -> bool:
    """Whether a variable of the user's reaches a trial."""
    return (name in _PLACES or is_recorded(name)) and not is_secret(name) and not _NEVER.search(name)


def worker_environment(source: Mapping[str, str], device: str, kind: str) -> dict[str, str]:
    """What a worker has of `source`, with `device` as the only visible accelerator; for the kind "cpu" none is.

    Where no device is named, those that `source` itself shows are visible.
    """
    kept = {name: value for name, value in source.items() if is_allowed(name)}
    visible = "" if kind == "cpu" else device or source.get(VISIBLE_DEVICES)
    return kept if visible is None else kept | {VISIBLE_DEVICES: visible}
