"""The same trials on a CUDA device, where there is one."""

from __future__ import annotations

import pytest

from engine.worker.adapters.torch import TorchCpu, open_torch
from scenarios.compute import gemm
from tests.worker.driving import a_spec, drive

CUDA = {"kind": "cuda", "index": 0}


@pytest.fixture(autouse=True)
def _needs_a_device() -> None:
    if not TorchCpu().torch.cuda.is_available():
        pytest.skip("cannot here: no CUDA device")


@pytest.mark.parametrize("dtype", list(gemm.FORMATS))
def test_products_are_right_or_unsupported(dtype: str) -> None:
    reason = open_torch("cuda", 0).supports(dtype)
    parameters = {"dtype": dtype, "shape": "512x512x512"}
    ended = drive(a_spec(scenario="compute/gemm", framework="torch", device=CUDA, parameters=parameters))
    if reason:
        assert ended.failure == ("unsupported", reason)
    else:
        assert ended.result["metrics"][0]["timer"] == "cuda events"
        assert ended.result["metrics"][0]["count"] == len(ended.durations_s("rate"))


def test_stream_is_right() -> None:
    parameters = {"dtype": "fp32", "size": "64 MiB"}
    ended = drive(a_spec(scenario="memory/stream", framework="torch", device=CUDA, parameters=parameters))
    assert len(ended.result["metrics"]) == 5
