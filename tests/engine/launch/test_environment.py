"""The allow-list of a trial's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.launch.environment import trial_environment
from engine.variables import is_allowed, worker_environment


def of(source: dict[str, str], device: str = "GPU-1", kind: str = "cuda") -> dict[str, str]:
    return trial_environment(
        source,
        run="run1",
        trial="t0001",
        token="tok",
        device=device,
        kind=kind,
        run_folder=Path("/run1"),
        scratch=Path("/run1/scratch/t0001"),
    )


def test_what_a_trial_gets_of_an_empty_environment() -> None:
    assert of({}) == {
        "TMPDIR": "/run1/scratch/t0001",
        "XDG_CACHE_HOME": "/run1/scratch/t0001/cache",
        "TRITON_CACHE_DIR": "/run1/scratch/t0001/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/run1/scratch/t0001/inductor",
        "CUDA_CACHE_PATH": "/run1/scratch/t0001/cuda",
        "MPLCONFIGDIR": "/run1/scratch/t0001/matplotlib",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "AIBENCH_RUN_ID": "run1",
        "AIBENCH_TRIAL_ID": "t0001",
        "AIBENCH_RUN_FOLDER": "/run1",
        "AIBENCH_TOKEN": "tok",
    }


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME",
        "NCCL_DEBUG", "OMP_NUM_THREADS", "XLA_FLAGS", "PYTORCH_CUDA_ALLOC_CONF", "HSA_OVERRIDE_GFX_VERSION",
    ],
)  # fmt: skip
def test_what_tunes_or_finds_a_framework_is_kept(name: str) -> None:
    assert of({name: "value"})[name] == "value"


@pytest.mark.parametrize(
    "name",
    [
        "AWS_ACCESS_KEY_ID", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "JAX_SECRET", "CUDA_PASSWORD", "NCCL_credential",
        "LC_PASSWD", "LD_PRELOAD", "SSH_AUTH_SOCK", "HTTP_PROXY", "PYTHONSTARTUP", "PYTHONHOME", "AIBENCH_SOMETHING",
        "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR", "",
        "NVIDIA_AUTH_HEADER",
    ],
)  # fmt: skip
def test_what_is_secret_or_would_make_arms_differ_is_not(name: str) -> None:
    assert not is_allowed(name)
    assert of({name: "value"}) == of({})


def test_on_the_cpu_no_accelerator_is_visible() -> None:
    assert of({"CUDA_VISIBLE_DEVICES": "3"}, device="cpu", kind="cpu")["CUDA_VISIBLE_DEVICES"] == ""


def test_the_programs_own_values_win() -> None:
    assert of({"CUDA_CACHE_PATH": "/home/cache", "TMPDIR": "/tmp", "CUDA_VISIBLE_DEVICES": "3"}) == of({})


@pytest.mark.parametrize(
    ("device", "kind", "visible"), [("GPU-1", "cuda", "GPU-1"), ("", "cuda", "3"), ("cpu", "cpu", ""), ("", "cpu", "")]
)
def test_the_devices_that_a_worker_sees(device: str, kind: str, visible: str) -> None:
    assert worker_environment({"CUDA_VISIBLE_DEVICES": "3"}, device, kind) == {"CUDA_VISIBLE_DEVICES": visible}


def test_a_worker_for_no_named_device_sees_what_there_is() -> None:
    assert worker_environment({}, "", "cuda") == {}
