"""The environment of a trial: an allow-list, the same in every arm, so that no arm has a variable the other lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.variables import RUN_FOLDER, RUN_ID, TOKEN, TRIAL_ID, worker_environment

__all__ = ["RUN_FOLDER", "RUN_ID", "TOKEN", "TRIAL_ID", "trial_environment"]

_CACHES = {
    "TMPDIR": "",
    "XDG_CACHE_HOME": "cache",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}


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
    caches = {name: str(scratch / folder) for name, folder in _CACHES.items()}
    return (
        worker_environment(source, device, kind)
        | caches
        | {
            "PYTHONUNBUFFERED": "1",  # what it printed before it crashed must reach the log
            # Bytecode that is there is used, but none is written: a bare trial would write it into the stage and the
            # host's packages for the trials after it, a container loses what it writes.
            "PYTHONDONTWRITEBYTECODE": "1",
            RUN_ID: run,
            TRIAL_ID: trial,
            RUN_FOLDER: str(run_folder),
            TOKEN: token,
        }
    )
