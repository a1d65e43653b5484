"""The environment of a trial: an allow-list, the same in every arm, so that no arm has a variable the other lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
})  # fmt: skip

PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "XLA_", "JAX_", "TORCH_",
    "PYTORCH_", "ROCR_", "HIP_", "HSA_",
)  # fmt: skip

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

# Devices are chosen by the plan; a compilation cache from before would serve one arm and not the other.
_NEVER = re.compile("_VISIBLE_DEVICES$|^JAX_COMPILATION_CACHE_DIR$|^JAX_PERSISTENT_CACHE_")

_CACHES = {
    "TMPDIR": "",
    "XDG_CACHE_HOME": "cache",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}

RUN_ID = "AIBENCH_RUN_ID"
TRIAL_ID = "AIBENCH_TRIAL_ID"
RUN_FOLDER = "AIBENCH_RUN_FOLDER"
TOKEN = "AIBENCH_TOKEN"  # noqa: S105 - the name of the variable; its value is new in every trial


def trial_environment(
    source: Mapping[str, str],
    *,
    run: str,
    trial: str,
    token: str,
    device: str,
    kind: str,
    run_folder: Path,
    scratch: Path,
) -> dict[str, str]:
    """What a trial's processes see of `source` (the runner's environment), and what the program adds.

    `device` is the only accelerator that is visible; for the kind "cpu" none is. The home stays, since frameworks
    and user packages are found through it; caches go to the trial's own empty folder.
    """
    kept = {name: value for name, value in source.items() if is_allowed(name)}
    caches = {name: str(scratch / folder) for name, folder in _CACHES.items()}
    return (
        kept
        | caches
        | {
            "PYTHONUNBUFFERED": "1",  # what it printed before it crashed must reach the log
            "CUDA_VISIBLE_DEVICES": "" if kind == "cpu" else device,
            RUN_ID: run,
            TRIAL_ID: trial,
            RUN_FOLDER: str(run_folder),
            TOKEN: token,
        }
    )


def is_allowed(name: str) -> bool:
    """Whether a variable of the user's reaches a trial."""
    wanted = name in NAMES or name.startswith(PREFIXES)
    return wanted and not _SECRET.search(name) and not _NEVER.search(name)
