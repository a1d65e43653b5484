"""The container launcher: its command word by word, and what it must refuse. Real containers: test_oci_podman."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from engine import exits
from engine.errors import AibenchError
from engine.launch import containers, oci
from engine.launch.base import Launch, TrialFiles, keeper_command
from engine.launch.oci import OciLauncher
from engine.plan import Environment
from engine.values import Missing
from tests.worker.keeping import is_alive, wait_until

FILES = TrialFiles(stage=Path("/r/stage"), spec=Path("/r/scratch/t0001/s"), scratch=Path("/r/scratch/t0001"))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with clients that are only there, one mount below / and known limits."""
    for name in containers.RUNTIMES:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    for name in list(containers.client_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(oci, "mounted_below_root", lambda: ["/home"])
    monkeypatch.setattr(oci, "trial_environment", lambda *_, **__: {"AIBENCH_TOKEN": "t", "HOME": "/root", "LANG": "C"})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    return tmp_path


def prepared(environment: Environment, kind: str = "cpu") -> Launch:
    launcher = OciLauncher(environment, "/opt/venv/bin/python", "GPU-1", kind, wall_clock=lambda: 1000.5)
    return launcher.prepare("run1", "t0001", "tok", 60.0, FILES)


def test_the_mirror_word_by_word(machine: Path) -> None:
    most = Path("/proc/sys/kernel/pid_max").read_text().strip()
    launch = prepared(Environment(kind="podman"))
    assert list(launch.argv) == [
        f"{machine}/podman",
        "run",
        "--interactive",
        "--rm",
        "--pull=never",
        "--log-driver=none",
        "--name=aibench-run1-t0001",
        "--label=aibench.run=run1",
        "--label=aibench.trial=t0001",
        "--label=aibench.expires=1361",
        "--label=aibench.folder=/r",
        "--timeout=90",
        "--network=host",
        "--ulimit=nofile=1024:-1",
        "--ulimit=memlock=1024:-1",
        f"--ulimit=nproc=1024:{most}",
        "--volume=/home:/home:ro",
        "--volume=/r/stage:/r/stage:ro",
        "--volume=/r/scratch/t0001/s:/r/scratch/t0001/s:ro",
        "--volume=/r/scratch/t0001:/r/scratch/t0001:rw",
        "--env=HOME=/root",
        "--env=LANG=C",
        "--env=AIBENCH_TOKEN",
        "--workdir=/r/scratch/t0001",
        "--security-opt=label=disable",
        "--rootfs",
        "/:O",
        *keeper_command("/opt/venv/bin/python", "run1", "t0001", 60.0, FILES),
    ]
    assert (launch.handle, launch.runtime, launch.cwd) == ("aibench-run1-t0001", "podman", FILES.scratch)


def test_the_client_has_what_it_needs_and_the_trial_id_stays_inside(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the trial's id a client or its monitor would be killed as a left-over of the trial, while cleaning up."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert prepared(Environment(kind="podman")).env == {
        "PATH": str(machine),
        "DOCKER_HOST": "unix:///x",
        "AIBENCH_RUN_ID": "run1",
        "AIBENCH_RUN_FOLDER": "/r",
        "AIBENCH_TOKEN": "tok",
    }


def test_the_limits_of_the_plan() -> None:
    environment = Environment(kind="podman", cpus=0.5, memory="2g", cpuset="0-3", shm="1g", network="none")
    argv = prepared(environment).argv
    limits = {"--cpus=0.5", "--memory=2g", "--cpuset-cpus=0-3", "--shm-size=1g", "--network=none"}
    assert limits <= set(argv)
    assert OciLauncher(environment, "python3", "cpu", "cpu").describe() == {
        "runtime": Missing("exit code 1", "podman"),
        "software": "the host's own, under an overlay",
        "network": "none",
        "limit_cpus": "0.5",
        "limit_memory": "2g",
        "limit_cpuset-cpus": "0-3",
        "limit_shm-size": "1g",
    }


def test_an_image_brings_its_own_python_and_paths() -> None:
    argv = prepared(Environment(kind="docker", image="registry/pytorch:2")).argv
    assert argv[argv.index("registry/pytorch:2") - 1 : argv.index("registry/pytorch:2") + 3] == (
        "--entrypoint=python3",
        "registry/pytorch:2",
        "-I",
        "/r/stage/engine/worker/keeper.py",
    )
    assert "--env=LANG=C" in argv
    assert not [word for word in argv if word.startswith(("--rootfs", "--env=HOME", "--volume=/home", "--timeout"))]


def test_the_accelerator_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--gpus=all" in prepared(Environment(kind="docker", image="x"), kind="cuda").argv
    spec = tmp_path / "nvidia.yaml"
    monkeypatch.setattr(oci, "CDI_SPECS", (spec,))
    assert "--device=nvidia.com/gpu=all" not in prepared(Environment(kind="podman", image="x"), kind="cuda").argv
    spec.touch()
    assert "--device=nvidia.com/gpu=all" in prepared(Environment(kind="podman", image="x"), kind="cuda").argv


def test_the_accelerator_of_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device files and the folder that an H200 node kept its driver in (a mount of its own there)."""
    monkeypatch.setattr(oci, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setattr(oci, "_nvidia_devices", lambda: ["/dev/nvidia0", "/dev/nvidiactl"])
    argv = prepared(Environment(kind="podman"), kind="cuda").argv
    assert {"--device=/dev/nvidia0", "--device=/dev/nvidiactl", f"--volume={tmp_path}:{tmp_path}:ro"} <= set(argv)
    assert not [word for word in prepared(Environment(kind="podman")).argv if "nvidia" in word]


@pytest.mark.parametrize("kind", ["docker", "nerdctl"])
def test_a_runtime_that_cannot_mirror_the_host(kind: str) -> None:
    with pytest.raises(AibenchError) as error:
        prepared(Environment(kind=kind, name="half"))  # type: ignore[arg-type]
    assert str(error.value) == (
        f"environment 'half': {kind} cannot mirror the host's software without an image;"
        ' name an image, or use kind = "podman"'
    )
    assert error.value.code == exits.USAGE


def test_a_runtime_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AibenchError, match="podman is not installed") as error:
        prepared(Environment(kind="podman"))
    assert error.value.code == exits.USAGE


def test_an_image_that_is_an_option() -> None:
    with pytest.raises(AibenchError, match="is no image"):
        prepared(Environment(kind="podman", image="--privileged"))


def test_a_run_folder_that_a_volume_cannot_name() -> None:
    files = TrialFiles(stage=Path("/a:b/stage"), spec=Path("/a:b/s"), scratch=Path("/a:b/scratch"))
    launcher = OciLauncher(Environment(kind="podman"), "python3", "cpu", "cpu")
    with pytest.raises(AibenchError, match="its path has a colon"):
        launcher.prepare("run1", "t0001", "tok", 60.0, files)


def answering(machine: Path, script: str) -> None:
    (machine / "podman").write_text(f"#!/bin/sh\n{script}\n")


def test_a_runtime_that_hangs(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(machine, "exec /bin/sleep 600")
    monkeypatch.setattr(containers, "CALL_LIMIT_S", 0.2)
    with pytest.raises(AibenchError, match=r"podman does not answer: `ps`: no end within 0\.2 s") as error:
        oci.list_ours("podman")
    assert error.value.code == exits.NOT_READY
    assert not oci.remove("podman", "aibench-run1-t0001", "run1")


def test_a_runtime_that_hangs_leaves_nothing_of_its_own_behind(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the client alone ends, but what it started too."""
    answering(machine, "/bin/sleep 600 & echo $! > $0.pid; wait")
    monkeypatch.setattr(containers, "CALL_LIMIT_S", 0.5)
    with pytest.raises(AibenchError, match="no end within"):
        oci.list_ours("podman")
    sleeper = int((machine / "podman.pid").read_text())
    wait_until(lambda: not is_alive(sleeper))


def test_a_runtime_that_prints_for_ever(machine: Path) -> None:
    answering(machine, "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done")
    version = containers.runtime_version("podman")
    assert isinstance(version, Missing)
    assert "more than 1048576 bytes of output" in version.missing


def test_the_version_of_a_runtime_that_does_not_say_it(machine: Path) -> None:
    answering(machine, "echo 'cannot open \033[2Jstore' >&2; exit 125")
    assert containers.runtime_version("podman") == Missing("cannot open ␛[2Jstore", "podman")
    answering(machine, "exit 0")
    assert containers.runtime_version("podman") == Missing("it says nothing", "podman")


def test_a_runtime_whose_daemon_is_down(machine: Path) -> None:
    """What docker's client says then, with an escape sequence as a hostile daemon could send."""
    answering(machine, "printf 'Cannot connect to the Docker daemon\\033[2J' >&2; exit 1")
    with pytest.raises(AibenchError, match="podman does not answer: Cannot connect to the Docker daemon") as error:
        oci.list_ours("podman")
    assert "\x1b" not in str(error.value)
    assert not oci.remove("podman", "aibench-run1-t0001", "run1")


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", "[1]", "[[[[", '[{"Config": {}}]', '[{"Config": {"Labels": null}}]']
)
def test_a_runtime_that_answers_nonsense(machine: Path, answer: str) -> None:
    answering(machine, f"if [ $1 = ps ]; then echo abc; else echo '{answer}'; fi")
    assert oci.list_ours("podman") == []
