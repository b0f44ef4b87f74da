from __future__ import annotations

import pytest

from stockade.errors import HostUnfit, InvalidRequest, PolicyError
from stockade.policy.command import command
from stockade.policy.compile import compile_policy, mechanisms_in_force
from stockade.policy.layout import target
from stockade.policy.model import Limits, Policy
from stockade.sandbox.spec import (
    Access,
    Bind,
    CgroupLimits,
    Devices,
    Directory,
    Host,
    Identity,
    MiB,
    Place,
    Proc,
    Resolution,
    Rlimit,
    SandboxSpec,
    Symlink,
    Tmpfs,
)

ALL = frozenset({"memory", "pids", "cpu", "io", "cpuset"})
NONE: frozenset[str] = frozenset()


def place(given, real=None, *, inode=7, uid=1000, gid=1001):
    return Place(given, real or given, 1, inode, uid, gid, True)


def host(controllers=ALL, identity=Identity.RANGE):
    return Host(
        identity=identity,
        controllers=controllers,
        system=(place("/usr", inode=2),),
        links=(("/bin", "usr/bin"), ("/lib", "usr/lib")),
        etc=place("/etc", "/run/stockade/etc", inode=3),
        cpus=4,
    )


def compiled(policy=None, *, of=None, on=None, inherited=None, **places):
    resolution = Resolution(executable="/usr/bin/ls", cwd="/w", **places)
    return compile_policy(policy or Policy(), of or command(["ls"]), on or host(), resolution, inherited=inherited or {})


def bind(path, access=Access.RW, *, source=None, owner=None, inode=7):
    return Bind(source or path, path, access, 1, inode, owner)


def targets(spec):
    return [target(mount) for mount in spec.mounts]


def at(spec, path):
    return [mount for mount in spec.mounts if target(mount) == path]


TMP = Tmpfs("/tmp", 64 * MiB, 16384, 0o1777)
HOME = Tmpfs("/home/job", 64 * MiB, 16384, 0o700, True)


def test_the_plan_of_an_ordinary_job():
    assert compiled(Policy(workspace="/w", ro=["/data"]), workspace=place("/w"), ro=(place("/data"),)) == SandboxSpec(
        argv=("ls",),
        executable="/usr/bin/ls",
        cwd="/w",
        environment=(
            ("GIT_PAGER", "cat"),
            ("HOME", "/home/job"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "job"),
            ("NO_COLOR", "1"),
            ("PAGER", "cat"),
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("PWD", "/w"),
            ("SHELL", "/bin/sh"),
            ("TERM", "dumb"),
            ("TMPDIR", "/tmp"),
            ("USER", "job"),
        ),
        mounts=(
            Symlink("/bin", "usr/bin"),
            bind("/data", Access.RO, owner=(1000, 1001)),
            Devices(64 * MiB, 4096),
            bind("/etc", Access.RO, source="/run/stockade/etc", inode=3),
            Directory("/home"),
            Symlink("/lib", "usr/lib"),
            Proc(),
            Directory("/run"),
            TMP,
            bind("/usr", Access.RO, inode=2),
            bind("/w", owner=(1000, 1001)),
            HOME,
            Symlink("/var/tmp", "/tmp"),
        ),
        rlimits=(
            Rlimit("CORE", 1),
            Rlimit("MEMLOCK", 65536),
            Rlimit("MSGQUEUE", 819200),
            Rlimit("NICE", 0),
            Rlimit("NOFILE", 1024),
            Rlimit("RTPRIO", 0),
            Rlimit("SIGPENDING", 512),
        ),
        cgroup=CgroupLimits(memory_max=512 * MiB, swap_max=0, oom_group=True, pids_max=257),
        seccomp="default",
        identity=Identity.RANGE,
        hostname="stockade",
        loopback=True,
        shm_bytes=512 * MiB,
        mechanisms=(
            ("disk", "disk.tmpfs"),
            ("kill", "kill.cgroup"),
            ("memory", "memory.cgroup"),
            ("open_files", "open_files.rlimit"),
            ("output", "output.supervisor"),
            ("processes", "processes.cgroup"),
            ("wall_time", "wall_time.supervisor"),
        ),
    )


EVERY = Limits(
    wall_time=1, cpu_time=1, idle_time=1, memory_high="8M", cpus=0.5, cpu_weight=50, cpuset="0", io=["8:0 rbps=1"], file_size="1G"
)


def test_every_limit_with_every_controller():
    spec = compiled(Policy(limits=EVERY, network="none", hostname="box", seccomp="strict"), io=("8:0 rbps=1",))
    assert spec.cgroup == CgroupLimits(
        memory_max=512 * MiB,
        memory_high=8 * MiB,
        swap_max=0,
        oom_group=True,
        pids_max=257,
        cpu_max=0.5,
        cpu_weight=50,
        cpuset_cpus="0",
        io_max=("8:0 rbps=1",),
    )
    assert Rlimit("FSIZE", 1 << 30) in spec.rlimits
    assert (spec.loopback, spec.hostname, spec.seccomp) == (False, "box", "strict")
    assert dict(spec.mechanisms) == {
        "disk": "disk.tmpfs",
        "kill": "kill.cgroup",
        "memory": "memory.cgroup",
        "memory_high": "memory_high.cgroup",
        "processes": "processes.cgroup",
        "cpus": "cpu.cgroup",
        "cpu_weight": "cpu.cgroup",
        "cpuset": "cpuset.cgroup",
        "cpu_time": "cpu_time.cgroup",
        "idle_time": "idle_time.supervisor",
        "wall_time": "wall_time.supervisor",
        "io": "io.cgroup",
        "open_files": "open_files.rlimit",
        "file_size": "file_size.rlimit",
        "output": "output.supervisor",
    }


def test_every_limit_without_any_controller_is_named_and_never_silent():
    spec = compiled(Policy(limits=EVERY), on=host(NONE))
    assert spec.cgroup == CgroupLimits()
    assert Rlimit("NPROC", 257) in spec.rlimits
    assert {
        limit: name
        for limit, name in spec.mechanisms
        if limit in ("memory", "memory_high", "processes", "cpus", "cpu_weight", "cpuset", "io")
    } == {
        "memory": "memory.sampled",
        "memory_high": "memory_high.none",
        "processes": "processes.rlimit",
        "cpus": "cpu.none",
        "cpu_weight": "cpu.none",
        "cpuset": "cpuset.none",
        "io": "io.none",
    }


def test_a_limit_that_is_not_set_has_no_mechanism():
    limits = Limits(memory=None, wall_time=None)
    assert [limit for limit, _ in mechanisms_in_force(limits, host())] == ["disk", "kill", "open_files", "output", "processes"]
    assert compiled(Policy(limits=limits)).cgroup == CgroupLimits(pids_max=257)


@pytest.mark.parametrize("controllers", [ALL, NONE])
def test_address_space_is_never_limited(controllers):
    names = [limit.name for limit in compiled(on=host(controllers)).rlimits]
    assert "AS" not in names
    assert ("NPROC" in names) == (controllers is NONE)


@pytest.mark.parametrize(
    ("required", "says"),
    [
        ("memory.cgroup", "memory.sampled holds instead"),
        ("processes.cgroup", "processes.rlimit holds instead"),
        ("cpu.cgroup", "nothing enforces it"),
        ("io.cgroup", "nothing enforces it"),
        ("cpuset.cgroup", "nothing enforces it"),
    ],
)
def test_a_required_mechanism_that_the_host_lacks_is_refused_with_what_holds_and_the_way_out(required, says):
    with pytest.raises(HostUnfit) as caught:
        compiled(Policy(require=[required]), on=host(NONE))
    assert caught.value.feature == required
    assert says in caught.value.message
    assert "delegate the" in (caught.value.hint or "")
    assert "cgroup v2" in (caught.value.hint or "")


def test_required_mechanisms_that_hold_are_no_obstacle():
    assert compiled(Policy(require=["memory.cgroup", "kill.cgroup"])) == compiled()


def test_arguments_and_environment_are_counted_together():
    many = {f"V{number}": "x" * 100_000 for number in range(15)}
    with pytest.raises(InvalidRequest, match="arguments and environment"):
        compiled(Policy(env=many), of=command(["ls", *["x" * 100_000] * 10]))


def test_inherited_variables_come_from_the_argument():
    assert ("EDITOR", "vi") in compiled(Policy(inherit_env=True), inherited={"EDITOR": "vi"}).environment


def test_compiling_twice_gives_the_same_plan_in_any_order_of_places():
    places = tuple(place(path) for path in ("/b/c", "/a", "/b", "/a/x/y"))
    assert compiled(ro=places) == compiled(ro=tuple(reversed(places)))


def test_parents_are_mounted_before_what_lies_below_them():
    spec = compiled(
        workspace=place("/tmp/ws"),
        ro=(place("/tmp/ws/.git"), place("/srv")),
        rw=(place("/srv/a/b"), place("/usr/local/cache")),
    )
    order = targets(spec)
    for above, below in [
        ("/tmp", "/tmp/ws"),
        ("/tmp/ws", "/tmp/ws/.git"),
        ("/srv", "/srv/a/b"),
        ("/usr", "/usr/local/cache"),
        ("/home", "/home/job"),
    ]:
        assert order.index(above) < order.index(below)
    assert [path.count("/") for path in order] == sorted(path.count("/") for path in order)
    assert len(set(order)) == len(order)


@pytest.mark.parametrize(("identity", "owner"), [(Identity.RANGE, (1000, 1001)), (Identity.CALLER, None)])
def test_named_places_are_idmapped_where_the_job_has_a_range(identity, owner):
    spec = compiled(on=host(identity=identity), workspace=place("/w"), rw=(place("/c"),), ro=(place("/d"),))
    assert [at(spec, path) for path in ("/w", "/c", "/d")] == [
        [bind("/w", owner=owner)],
        [bind("/c", owner=owner)],
        [bind("/d", Access.RO, owner=owner)],
    ]


def test_what_root_owns_keeps_its_modes_where_it_is_only_read():
    spec = compiled(ro=(place("/d", uid=0),), rw=(place("/c", uid=0),))
    assert [at(spec, path) for path in ("/c", "/d")] == [[bind("/c", owner=(0, 1001))], [bind("/d", Access.RO)]]


def test_what_an_enclosing_bind_shows_already_is_not_mounted_again():
    spec = compiled(workspace=place("/w"), rw=(place("/w/a"),), ro=(place("/usr/share", uid=0), place("/w/b"), place("/w/b/c")))
    assert [path for path in targets(spec) if path.startswith(("/w", "/usr"))] == ["/usr", "/w", "/w/b"]


def test_a_writable_island_in_a_shield_is_kept():
    spec = compiled(workspace=place("/w"), ro=(place("/w/a"),), rw=(place("/w/a/b"),))
    assert [path for path in targets(spec) if path.startswith("/w")] == ["/w", "/w/a", "/w/a/b"]


def test_another_owner_is_mounted_again():
    spec = compiled(workspace=place("/w"), rw=(place("/w/a", uid=5),))
    assert "/w/a" in targets(spec)


def test_a_tree_of_an_image_does_not_cover_the_hosts_own():
    image = Host(Identity.RANGE, ALL, (place("/usr", "/image/usr"),), (), place("/etc"), 1)
    spec = compiled(on=image, ro=(place("/usr/share", uid=0),))
    assert at(spec, "/usr") == [bind("/usr", Access.RO, source="/image/usr")]
    assert at(spec, "/usr/share") == [bind("/usr/share", Access.RO)]


def test_a_path_given_by_a_link_is_mounted_at_its_real_place_and_linked():
    spec = compiled(workspace=place("/link", "/real/w"))
    assert at(spec, "/link") == [Symlink("/link", "/real/w")]
    assert at(spec, "/real/w") == [bind("/real/w", owner=(1000, 1001))]


@pytest.mark.parametrize("given", ["/usr/share/link", "/bin/link", "/w/link"])
def test_a_link_inside_a_bound_tree_is_there_already(given):
    assert at(compiled(workspace=place("/w"), ro=(place(given, "/real"),)), given) == []


def test_a_link_below_another_link_is_there_already():
    spec = compiled(rw=(place("/a", "/real"), place("/a/sub", "/other")))
    assert [mount for mount in spec.mounts if isinstance(mount, Symlink) and mount.target.startswith("/a")] == [Symlink("/a", "/real")]


@pytest.mark.parametrize("given", ["/tmp/link", "/home/alice", "/run/x"])
def test_a_link_in_the_sandboxs_own_places_is_made(given):
    assert at(compiled(ro=(place(given, "/real"),)), given) == [Symlink(given, "/real")]


@pytest.mark.parametrize("path", ["/tmp", "/run", "/home/job", "/var/tmp", "/etc"])
def test_what_the_policy_names_takes_the_place_of_what_the_sandbox_would_make(path):
    assert at(compiled(rw=(place(path),)), path) == [bind(path, owner=(1000, 1001))]


@pytest.mark.parametrize("path", ["/tmp", "/run", "/home/job", "/var/tmp"])
def test_and_so_does_a_link(path):
    assert at(compiled(rw=(place(path, "/real"),)), path) == [Symlink(path, "/real")]


def test_var_tmp_is_a_file_system_where_something_is_mounted_in_it():
    spec = compiled(workspace=place("/var/tmp/ws"))
    assert at(spec, "/var/tmp") == [Tmpfs("/var/tmp", 64 * MiB, 16384, 0o1777)]
    assert at(spec, "/var/tmp/ws") == [bind("/var/tmp/ws", owner=(1000, 1001))]


def test_var_tmp_comes_with_var():
    assert at(compiled(ro=(place("/var"),)), "/var/tmp") == []


@pytest.mark.parametrize("real", ["/", "/proc/1/root", "/sys", "/dev/shm/x", "/home"])
def test_a_link_to_a_place_that_cannot_be_passed_in_is_refused(real):
    with pytest.raises(PolicyError, match="'/data' leads elsewhere") as caught:
        compiled(ro=(place("/data", real),))
    assert caught.value.field == "ro"


def test_one_place_by_two_names_with_two_kinds_of_access_is_refused():
    with pytest.raises(PolicyError, match="'/link' is '/w', already given as workspace: name it once") as caught:
        compiled(workspace=place("/w"), ro=(place("/link", "/w"),))
    assert caught.value.field == "ro"


def test_one_place_by_two_names_with_one_kind_of_access_is_mounted_once():
    spec = compiled(workspace=place("/w"), rw=(place("/link", "/w"),))
    assert at(spec, "/w") == [bind("/w", owner=(1000, 1001))]
    assert at(spec, "/link") == [Symlink("/link", "/w")]


def test_every_plan_can_be_described():
    assert all(isinstance(line, str) for line in compiled(Policy(limits=EVERY), workspace=place("/w")).describe())
