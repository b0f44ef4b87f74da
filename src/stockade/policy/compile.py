"""From a policy and a command to the plan of one sandbox; pure: the same values give the same plan, on any host.

Each limit is carried by the strongest mechanism that the host has, and the plan names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from stockade.errors import HostUnfit, PolicyError
from stockade.policy.checks import Environment
from stockade.policy.command import Command, check_exec_size
from stockade.policy.environment import job_environment
from stockade.policy.layout import mount_plan
from stockade.policy.model import Limits, Network, Policy, cpu_numbers
from stockade.policy.quantities import shown
from stockade.sandbox.spec import CgroupLimits, Devices, Host, KiB, Resolution, Rlimit, SandboxSpec

# limit -> (the controller that it needs, the mechanism with it, the mechanism without it)
_BY_CONTROLLER = {
    "memory": ("memory", "memory.cgroup", "memory.sampled"),
    "memory_high": ("memory", "memory_high.cgroup", "memory_high.none"),
    "processes": ("pids", "processes.cgroup", "processes.rlimit"),
    "cpus": ("cpu", "cpu.cgroup", "cpu.none"),
    "cpu_weight": ("cpu", "cpu.cgroup", "cpu.none"),
    "cpuset": ("cpuset", "cpuset.cgroup", "cpuset.none"),
    "io": ("io", "io.cgroup", "io.none"),
}

_ANYWHERE = {
    "kill": "kill.cgroup",
    "wall_time": "wall_time.supervisor",
    "cpu_time": "cpu_time.cgroup",  # cpu.stat is there without the controller
    "idle_time": "idle_time.supervisor",
    "output": "output.supervisor",
    "disk": "disk.tmpfs",
    "open_files": "open_files.rlimit",
    "file_size": "file_size.rlimit",
}

_NO_ENVIRONMENT: Mapping[str, str] = Environment()


def compile_policy(
    policy: Policy,
    command: Command,
    host: Host,
    resolution: Resolution,
    *,
    inherited: Mapping[str, str] = _NO_ENVIRONMENT,
) -> SandboxSpec:
    """The plan for this command; `inherited` is the caller's environment, of which `inherit_env` picks.

    In `host.system`, `given` is where a tree appears inside and `real` where it lies on the host.

    Raises: HostUnfit for a required mechanism that the host lacks, PolicyError for CPUs that are not there and for paths that cannot
    be mounted, InvalidRequest for arguments that the kernel would not take.
    """
    _check_required(policy, host)
    check_cpuset(policy.limits, host)
    terminal = None if command.tty is None else (command.tty.rows, command.tty.columns)
    mounts = mount_plan(policy, host, resolution)
    if terminal is not None:
        mounts = tuple(dataclasses.replace(mount, terminal=True) if isinstance(mount, Devices) else mount for mount in mounts)
    environment = job_environment(policy, command, resolution.cwd, inherited)
    check_exec_size(command.argv, environment)
    return SandboxSpec(
        argv=command.argv,
        executable=resolution.executable,
        cwd=resolution.cwd,
        environment=tuple(environment.items()),
        mounts=mounts,
        rlimits=_rlimits(policy.limits, host),
        cgroup=leaf_limits(policy.limits, host, resolution.io),
        seccomp=policy.seccomp,
        identity=host.identity,
        hostname=policy.hostname,
        loopback=policy.network is Network.LOOPBACK,
        inotify=host.inotify,
        shm_bytes=policy.limits.memory,
        mechanisms=mechanisms_in_force(policy.limits, host),
        interactive=command.takes_input,
        terminal=terminal,
    )


def mechanisms_of(host: Host) -> dict[str, str]:
    """The mechanism that each limit has on this host, set or not."""
    return _ANYWHERE | {
        limit: strong if controller in host.controllers else weak for limit, (controller, strong, weak) in _BY_CONTROLLER.items()
    }


def mechanisms_in_force(limits: Limits, host: Host) -> tuple[tuple[str, str], ...]:
    """The mechanisms of the limits that are set, by limit; one that nothing enforces here is named `….none`."""
    unset = {name for name in Limits.model_fields if getattr(limits, name) in (None, ())}
    return tuple(sorted((limit, name) for limit, name in mechanisms_of(host).items() if limit not in unset))


def _check_required(policy: Policy, host: Host) -> None:
    holding = mechanisms_of(host)
    for wanted in sorted(policy.require - set(holding.values())):
        limit, controller, weak = next(
            (limit, controller, weak) for limit, (controller, strong, weak) in _BY_CONTROLLER.items() if strong == wanted
        )
        instead = "nothing enforces it" if weak.endswith(".none") else f"{weak} holds instead"
        raise HostUnfit(
            f"the policy requires {wanted} for {limit}, and on this host {instead}: jobs' cgroups have no {controller} controller",
            feature=wanted,
            hint=f"delegate the {controller} controller to Stockade's cgroup (systemd: Delegate=yes), or boot with "
            f"cgroup v2 alone (systemd.unified_cgroup_hierarchy=1); or take {wanted} out of require",
        )


def check_cpuset(limits: Limits, host: Host) -> None:
    """Raises: PolicyError for CPUs that jobs cannot have here: the kernel would take others instead, without a word."""
    if limits.cpuset is None or host.cpuset is None:
        return
    if missing := cpu_numbers(limits.cpuset) - cpu_numbers(host.cpuset):
        raise PolicyError(
            f"limits.cpuset: {shown(limits.cpuset)} names CPU {min(missing)}, which jobs cannot have here",
            field="limits.cpuset",
            hint=f"give some of the CPUs {host.cpuset}",
        )


def leaf_limits(limits: Limits, host: Host, io: tuple[str, ...]) -> CgroupLimits:
    """What is written into a job's leaf on this host; `io` are the lines of io.max, with numbers of devices."""
    memory = "memory" in host.controllers
    capped = memory and limits.memory is not None
    cpu = "cpu" in host.controllers
    return CgroupLimits(
        memory_max=limits.memory if memory else None,
        memory_high=limits.memory_high if memory else None,
        # With swap the job could hold more.
        swap_max=0 if capped else None,
        oom_group=limits.memory_oom_group if capped else None,
        pids_max=limits.processes + 1 if "pids" in host.controllers else None,  # init counts
        cpu_max=limits.cpus if cpu else None,
        cpu_weight=limits.cpu_weight if cpu else None,
        cpuset_cpus=limits.cpuset if "cpuset" in host.controllers else None,
        io_max=io if "io" in host.controllers else (),
    )


def _rlimits(limits: Limits, host: Host) -> tuple[Rlimit, ...]:
    """The resource limits; never AS, because runtimes reserve address space that they do not use."""
    values = {
        # With 0 a piped core_pattern still starts its handler, as root on the host; 1 stops it too (core(5)).
        "CORE": 1,
        "FSIZE": limits.file_size,
        "MEMLOCK": 64 * KiB,
        "MSGQUEUE": 800 * KiB,
        "NICE": 0,
        "NOFILE": limits.open_files,
        # Init has the job's own id, so it counts.
        "NPROC": None if "pids" in host.controllers else limits.processes + 1,
        "RTPRIO": 0,
        "SIGPENDING": 512,  # counted for the user who makes the namespace as well (user_namespaces(7))
    }
    return tuple(Rlimit(name, value) for name, value in values.items() if value is not None)
