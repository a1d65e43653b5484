"""Facts of node and cgroup on made file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.hardware.cgroup import cgroup_facts
from engine.hardware.cpu import cpu_facts, cpu_name
from engine.hardware.node import container_kind, node_facts
from engine.values import Missing


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_cgroup_v2_limits_are_the_tightest_up_to_the_root(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            f"{group}/cgroup.controllers": "cpu memory",
            f"{group}/slice/cpu.max": "150000 100000",
            f"{group}/slice/memory.max": "2147483648",
            f"{group}/slice/job/cpu.max": "max 100000",
            f"{group}/slice/job/memory.max": "max",
            f"{group}/slice/job/cpuset.cpus.effective": "0-3",
        },
    )
    assert cgroup_facts(tmp_path) == {
        "cgroup_version": 2,
        "cgroup_cpus": 1.5,
        "cgroup_memory_limit_bytes": 2147483648,
        "cgroup_cpuset": "0-3",
    }


def test_cgroup_v1_limits_of_a_container_that_sees_its_group_as_root(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n5:cpuset:/docker/abc\n",
            f"{group}/cpu/cpu.cfs_quota_us": "50000",
            f"{group}/cpu/cpu.cfs_period_us": "100000",
            f"{group}/memory/memory.limit_in_bytes": "9223372036854771712",
            f"{group}/cpuset/cpuset.cpus": "0-1",
        },
    )
    facts = cgroup_facts(tmp_path)
    assert (facts["cgroup_version"], facts["cgroup_cpus"], facts["cgroup_cpuset"]) == (1, 0.5, "0-1")
    assert facts["cgroup_memory_limit_bytes"] == Missing("there is no memory limit", "cgroup")


def test_cgroup_path_that_climbs_out_stays_inside_the_mount(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../other\n",
            "sys/fs/cgroup/cgroup.controllers": "memory",
            "sys/fs/cgroup/memory.max": "4096",
            "other/memory.max": "1",
        },
    )
    assert cgroup_facts(tmp_path)["cgroup_memory_limit_bytes"] == 4096


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {}, "docker"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"proc/self/cgroup": "1:name=systemd:/lxc/7\n"}, {}, "lxc"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, "none"),
    ],
)
def test_container_is_told_by_its_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], kind: str
) -> None:
    assert container_kind(_write(tmp_path, files), environment) == kind


def test_node_facts_of_a_made_server(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "etc/os-release": 'NAME="X"\nPRETTY_NAME="Ubuntu 22.04.5 LTS\x1b[2J"\n',
            "proc/sys/kernel/random/boot_id": "b\n",
            "proc/sys/kernel/numa_balancing": "1\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/cpu/smt/active": "1\n",
            "sys/devices/system/node/node0/x": "",
            "sys/devices/system/node/node1/x": "",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    facts = node_facts(tmp_path, {"SLURM_JOB_ID": "77\x1b"})
    wanted = {
        "operating_system": "Ubuntu 22.04.5 LTS␛[2J",
        "boot_id": "b",
        "numa_balancing": True,
        "cpu_governor": "performance",
        "cpu_turbo": False,
        "smt_active": True,
        "numa_nodes": 2,
        "transparent_hugepages": "madvise",
        "slurm": True,
        "slurm_job_id": "77␛",
        "kubernetes": False,
    }
    assert {name: facts[name] for name in wanted} == wanted


def test_cpu_facts_of_a_made_server_add_all_last_level_caches(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "model name\t: EPYC\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f\n\nprocessor: 1\n"
    }
    for cpu, shared in ((0, "0"), (1, "1")):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{base}/topology/physical_package_id"] = str(cpu)
        files |= {
            f"{base}/cache/index0/{name}": value for name, value in (("level", "1"), ("type", "Data"), ("size", "32K"))
        }
        files |= {
            f"{base}/cache/index3/{name}": value
            for name, value in (("level", "3"), ("type", "Unified"), ("size", "96M"), ("shared_cpu_list", shared))
        }
    _write(tmp_path, files)
    facts = cpu_facts(tmp_path)
    assert cpu_name(tmp_path) == "EPYC"
    assert facts["flags"] == "avx2 avx512f"
    assert (facts["sockets"], facts["cache_l1d_bytes"], facts["cache_l3_total_bytes"]) == (2, 32768, 2 * 96 * 2**20)
    assert facts["cache_l2_bytes"] == Missing("the kernel describes no l2 cache", "kernel")
