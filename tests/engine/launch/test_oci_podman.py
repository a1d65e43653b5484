"""Trials in real podman containers, on the host's own files under an overlay."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.launch import oci
from engine.launch.base import Launch
from engine.launch.oci import OciLauncher
from engine.plan import Environment
from tests.engine.launch.podman import (
    PYTHON,
    TOKEN,
    configure,
    containers_of,
    new_run,
    podman,
    sleeper,
    start,
    trial_files,
)
from tests.worker.keeping import is_alive, wait_until

NAP = "import os, time\nopen('up', 'w').close()\ntime.sleep(600)"


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run of our own, of which nothing is left afterwards."""
    configure(tmp_path, monkeypatch)
    run = new_run()
    yield run
    for name in containers_of(run):
        podman("rm", "--force", "--time=0", name)


def launched(folder: Path, run: str, worker: str, **limits: Any) -> Launch:
    environment = Environment(kind="podman", **({"network": "none"} | limits))
    files = trial_files(folder, worker)
    return OciLauncher(environment, PYTHON, "cpu", "cpu").prepare(run, "t0001", TOKEN, 60.0, files)


def lines(process: subprocess.Popen[bytes]) -> list[Any]:
    """Each line of a trial that ended, decoded; the last one is the keeper's."""
    assert process.stdout is not None and process.stderr is not None
    output = process.stdout.read()
    assert output, process.stderr.read().decode()
    return [json.loads(line) for line in output.splitlines() if line]


def test_a_trial_runs_with_the_hosts_software_and_only_its_own_folder_to_write(tmp_path: Path, run: str) -> None:
    worker = (
        "import json, os, sys\n"
        "open('written', 'w').write(sys.stdin.readline())\n"
        "open('/etc/aibench-vanishes', 'w').close()\n"
        "print(json.dumps([os.getppid(), os.getcwd(), sys.executable, dict(os.environ), sys.argv[1]]))\n"
        "print(json.dumps(open('/proc/net/dev').read().count(':')))\n"
    )
    launch = launched(tmp_path, run, worker)
    with start(launch) as process:
        assert process.stdin is not None
        process.stdin.write(b"a pong\n")
        process.stdin.flush()
        facts, interfaces, report = lines(process)
    keeper, folder, python, environment, spec = facts
    assert (keeper, folder, python) == (1, str(launch.cwd), PYTHON)
    assert spec == str(launch.cwd / "trial.json")
    assert interfaces == 1
    assert (launch.cwd / "written").read_text() == "a pong\n"
    assert not Path("/etc/aibench-vanishes").exists()
    assert environment["AIBENCH_TRIAL_ID"] == "t0001"
    assert environment["TMPDIR"] == str(launch.cwd)
    assert "AIBENCH_TOKEN" not in environment
    assert (report["token"], report["exit_code"], report["cause"], process.returncode) == (TOKEN, 0, "ended", 0)
    assert containers_of(run) == []


def test_limits_are_those_of_the_plan_and_otherwise_the_hosts(tmp_path: Path, run: str) -> None:
    worker = (
        "import json, os, resource\n"
        "shm = os.statvfs('/dev/shm')\n"
        "print(json.dumps([sorted(os.sched_getaffinity(0)), shm.f_blocks * shm.f_frsize,"
        " resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK)]))\n"
    )
    with start(launched(tmp_path, run, worker, cpuset="0", shm="32m", cpus=0.5)) as process:
        facts, report = lines(process)
    limits = [list(resource.getrlimit(which)) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)]
    assert facts == [[0], 32 * 1024**2, *limits]
    assert report["exit_code"] == 0


def test_a_worker_out_of_memory_is_told_from_a_killed_one(tmp_path: Path, run: str) -> None:
    """The kernel ends the worker, not the keeper, which reports it."""
    with start(launched(tmp_path, run, "data = [bytearray(1 << 20) for _ in range(400)]", memory="64m")) as process:
        report = lines(process)[-1]
    assert report["signal"] == 9
    assert report["oom_kills"] >= 1


def test_a_killed_client_leaves_no_container(tmp_path: Path, run: str) -> None:
    """Its end closes the container's stdin, and the keeper in it ends everything."""
    launch = launched(tmp_path, run, NAP)
    with start(launch) as process:
        wait_until((launch.cwd / "up").exists)
        worker = worker_of(run)
        process.kill()
    wait_until(lambda: not is_alive(worker))
    wait_until(lambda: containers_of(run) == [])


def worker_of(run: str) -> int:
    """The worker's process id as the host sees it: the keeper's only child."""
    keeper = int(podman("inspect", "--format", "{{.State.Pid}}", f"aibench-{run}-t0001"))
    return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text())


def test_end_of_file_ends_the_container(tmp_path: Path, run: str) -> None:
    launch = launched(tmp_path, run, NAP)
    with start(launch) as process:
        wait_until((launch.cwd / "up").exists)
        assert process.stdin is not None
        process.stdin.close()
        report = lines(process)[-1]
    assert (report["cause"], report["signal"], process.returncode) == ("eof", 9, 4)
    assert containers_of(run) == []


def test_containers_of_ours_are_listed_with_their_labels(tmp_path: Path, run: str) -> None:
    launch = launched(tmp_path, run, NAP)
    with start(launch) as process:
        wait_until((launch.cwd / "up").exists)
        (found,) = oci.list_ours("podman", run)
        assert found in oci.list_ours("podman")
        assert (found.name, found.run, found.trial) == (launch.handle, run, "t0001")
        assert found.folder == str(tmp_path)
        assert 300 < found.expires - time.time() < 400
        assert oci.remove("podman", launch.handle, run)
        assert oci.list_ours("podman", run) == []
        assert process.wait(20) != 0


def test_a_container_that_ignores_everything_is_removed_at_once(tmp_path: Path, run: str) -> None:
    """PID 1 with SIGTERM ignored, its stdin open by nobody."""
    name = f"aibench-{run}-t0001"
    sleeper(name, f"--label=aibench.run={run}", "--stop-timeout=600")
    assert oci.remove("podman", name, run)
    assert containers_of(run) == []


def test_a_foreign_container_is_never_touched(run: str) -> None:
    """Neither one without our label nor another run's, whatever its name."""
    names = {f"aibench-{run}-t0001": (), f"aibench-{run}-t0002": ("--label=aibench.run=other-run",)}
    try:
        for name, options in names.items():
            sleeper(name, *options)
            assert oci.remove("podman", name, run)
        running = podman("ps", "--format", "{{.Names}}").split()
        assert set(names) <= set(running)
        assert run not in {container.run for container in oci.list_ours("podman")}
    finally:
        podman("rm", "--force", "--time=0", *names)


def test_the_runtime_describes_itself() -> None:
    facts = OciLauncher(Environment(kind="podman"), PYTHON, "cpu", "cpu").describe()
    assert str(facts["runtime"]).startswith("podman version ")
