"""The fingerprint: what is kept of node, interpreter and environment, and what never is."""

from __future__ import annotations

import pytest

from engine.hardware.fingerprint import REDACTED, fingerprint, relevant_environment
from engine.hardware.interpreters import Interpreter
from engine.hardware.inventory import Inventory
from engine.session import Device
from engine.values import Missing
from engine.variables import is_allowed

GPU = Device("GPU-1", 0, "cuda", "NVIDIA H200", {"driver_version": "580", "nvml_version": Missing("no", "NVML")})
CPU = Device("cpu", -1, "cpu", "Xeon", {})


def test_fingerprint_joins_node_driver_interpreter_and_environment() -> None:
    inventory = Inventory({"kernel": "6.1", "cpu_turbo": Missing("no", "kernel")}, (GPU, CPU), ())
    chosen = Interpreter("/opt/py", "torch", {"torch": "2.11", "python": "3.12"}, ())
    assert fingerprint(inventory, chosen, {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/root"}) == {
        "kernel": "6.1",
        "cpu_turbo": Missing("no", "kernel"),
        "driver_version": "580",
        "nvml_version": Missing("no", "NVML"),
        "devices": "NVIDIA H200",
        "python_path": "/opt/py",
        "framework": "torch",
        "python_version": "3.12",
        "torch_version": "2.11",
        "env_CUDA_VISIBLE_DEVICES": "0",
    }


@pytest.mark.parametrize(
    "name", ["NCCL_API_KEY", "TORCH_HUB_TOKEN", "JAX_SECRET", "CUDA_password", "XLA_CREDENTIALS", "NVIDIA_AUTH_HEADER"]
)
def test_variable_that_may_hold_a_secret_is_redacted(name: str) -> None:
    assert relevant_environment({name: "hunter2"}) == {f"env_{name}": REDACTED}


def test_variables_of_other_programs_are_not_kept() -> None:
    assert relevant_environment({"AWS_REGION": "x", "PATH": "/bin", "XCUDA_": "1"}) == {}


def test_variable_with_escape_codes_is_cleaned() -> None:
    assert relevant_environment({"OMP_NUM_THREADS": "4\x1b[2J"}) == {"env_OMP_NUM_THREADS": "4␛[2J"}


@pytest.mark.parametrize(
    "name", ["LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_ALL", "HSA_ENABLE_SDMA", "NCCL_ALGO", "KMP_AFFINITY"]
)
def test_what_reaches_a_trial_and_can_change_its_numbers_is_kept(name: str) -> None:
    assert is_allowed(name)
    assert relevant_environment({name: "value"}) == {f"env_{name}": "value"}
