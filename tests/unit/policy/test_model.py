from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stockade.errors import PolicyError
from stockade.policy.compile import _ANYWHERE, _BY_CONTROLLER
from stockade.policy.model import STRONG_MECHANISMS, Limits, Network, Overflow, Policy
from stockade.sandbox.spec import MiB


def test_the_default_policy_grants_nothing_of_the_host_but_its_programs():
    assert Policy().model_dump() == {
        "workspace": None,
        "ro": (),
        "rw": (),
        "root": "host",
        "executables": None,
        "path": ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
        "env": {},
        "inherit_env": False,
        "network": Network.LOOPBACK,
        "seccomp": "default",
        "hostname": "stockade",
        "limits": {
            "wall_time": 120.0,
            "cpu_time": None,
            "idle_time": None,
            "count_frozen": True,
            "grace": 5.0,
            "memory": 512 * MiB,
            "memory_high": None,
            "memory_oom_group": True,
            "processes": 256,
            "cpus": None,
            "cpu_weight": None,
            "cpuset": None,
            "io": (),
            "output": 10 * MiB,
            "open_files": 1024,
            "file_size": None,
            "tmp_size": 64 * MiB,
            "tmp_inodes": 16384,
            "home_size": 64 * MiB,
            "home_inodes": 16384,
            "shm_size": 64 * MiB,
        },
        "require": frozenset(),
        "overflow": Overflow.KILL,
        "merge_streams": False,
    }


FULL = {
    "workspace": Path("/srv/work/"),
    "ro": ["/data//set", "/opt/./tool"],
    "rw": ["/srv/cache"],
    "root": "/images/debian",
    "executables": ["python3", "git"],
    "path": ["/usr/bin"],
    "env": {"B": "2", "A": "1"},
    "inherit_env": ["LANG", "EDITOR"],
    "network": "none",
    "seccomp": "/etc/stockade/mine.json",
    "hostname": "box-1",
    "limits": {"memory": "1G", "cpus": "0.5", "wall_time": "5m", "cpuset": "0-1", "io": ["254:0 rbps=1048576"]},
    "require": ["memory.cgroup"],
    "overflow": "keep-tail",
    "merge_streams": True,
}


def test_values_are_read_once_and_kept_in_one_form():
    policy = Policy(**FULL)
    assert policy == Policy(
        workspace="/srv/work",
        ro=("/data/set", "/opt/tool"),
        rw=("/srv/cache",),
        root="/images/debian",
        executables=("python3", "git"),
        path=("/usr/bin",),
        env={"A": "1", "B": "2"},
        inherit_env=("EDITOR", "LANG"),
        network=Network.NONE,
        seccomp="/etc/stockade/mine.json",
        hostname="box-1",
        limits=Limits(memory=1024 * MiB, cpus=0.5, wall_time=300, cpuset="0-1", io=("254:0 rbps=1048576",)),
        require=frozenset({"memory.cgroup"}),
        overflow=Overflow.KEEP_TAIL,
        merge_streams=True,
    )
    assert hash(policy) == hash(Policy(**FULL))


def test_a_policy_survives_json():
    assert Policy.model_validate_json(Policy(**FULL).model_dump_json()) == Policy(**FULL)


PATHS = [
    ("data", "is not absolute"),
    ("", "is not absolute"),
    ("/", "name the directories that are needed"),
    ("//./", "name the directories that are needed"),
    ("/a/../etc", "without it"),
    ("/a\0b", "remove it and retry"),
    ("/a\ud800", "os.fsdecode"),
    ("/" + "a" * 4096, "shorten it"),
    (1, "give a str"),
    (b"/a", "give a str"),
    ("/proc", "the sandbox's own"),
    ("/proc/1", "the sandbox's own"),
    ("/sys/fs/cgroup", "the sandbox's own"),
    ("/dev/shm", "the sandbox's own"),
    ("/home", "name directories below it"),
]


@pytest.mark.parametrize(("path", "way_out"), PATHS)
@pytest.mark.parametrize("field", ["workspace", "ro", "rw"])
def test_a_path_that_cannot_be_passed_in_is_refused(field, path, way_out):
    with pytest.raises(PolicyError) as caught:
        Policy(**{field: path if field == "workspace" else [path]})
    assert caught.value.field == field
    assert way_out in str(caught.value)


@pytest.mark.parametrize("path", ["/processes", "/system", "/devices", "/home/job", "/home/alice", "/tmp", "/tmp/x"])
def test_a_path_that_only_looks_reserved_is_fine(path):
    assert Policy(ro=[path]).ro == (path,)


@pytest.mark.parametrize(
    ("fields", "field", "way_out"),
    [
        ({"ro": "/data"}, "ro", "give a list"),
        ({"rw": {"/data": 1}}, "rw", "give a list"),
        ({"ro": ["/a", "/a/"]}, "ro", "name it once"),
        ({"ro": ["/a"], "rw": ["/a"]}, "ro", "already given as rw: name it once"),
        ({"workspace": "/a", "rw": ["/a"]}, "rw", "writable by itself"),
        ({"workspace": "/a", "ro": ["/a"]}, "ro", "already given as workspace"),
        ({"root": "image"}, "root", "give 'host'"),
        ({"root": "/"}, "root", "name the directories"),
        ({"root": None}, "root", "give 'host'"),
        ({"executables": "python3"}, "executables", "give a list"),
        ({"executables": [1]}, "executables", "give a str"),
        ({"executables": [""]}, "executables", "[] to refuse every program"),
        ({"executables": ["a", "a"]}, "executables", "name it once"),
        ({"path": []}, "path", "at least one"),
        ({"path": ["bin"]}, "path", "is not absolute"),
        ({"path": ["/a:/b"]}, "path", "a list with one directory each"),
        ({"path": "/bin"}, "path", "give a list"),
        ({"env": {"A": 1}}, "env", "give a str"),
        ({"env": {"A=": ""}}, "env", "no '='"),
        ({"inherit_env": "LANG"}, "inherit_env", "a list of names"),
        ({"inherit_env": 1}, "inherit_env", "true, false"),
        ({"inherit_env": ["LD_PRELOAD"]}, "inherit_env", "set it in env"),
        ({"inherit_env": ["A=B"]}, "inherit_env", "no '='"),
        ({"network": "host"}, "network", "one of none, loopback"),
        ({"network": True}, "network", "one of none, loopback"),
        ({"seccomp": "off"}, "seccomp", "one of strict, default, debug"),
        ({"seccomp": "mine.json"}, "seccomp", "/path/to/profile.json"),
        ({"hostname": "a.b"}, "hostname", "letters, digits"),
        ({"hostname": "-a"}, "hostname", "letters, digits"),
        ({"hostname": "a" * 64}, "hostname", "1 to 63"),
        ({"limits": 3}, "limits", "give Limits"),
        ({"limits": {"memroy": 1}}, "limits.memroy", "did you mean 'memory'"),
        ({"limits": {"memory": "512"}}, "limits.memory", "write '512M'"),
        ({"require": ["memory"]}, "require", "memory.cgroup"),
        ({"require": ["memory.sampled"]}, "require", "memory.cgroup"),
        ({"require": "memory.cgroup"}, "require", "give a list"),
        ({"overflow": "drop"}, "overflow", "one of kill, keep-tail"),
        ({"merge_streams": "yes"}, "merge_streams", "true or false"),
        ({"workspce": "/a"}, "workspce", "did you mean 'workspace'"),
    ],
)
def test_what_is_wrong_is_refused_by_field_with_the_way_out(fields, field, way_out):
    with pytest.raises(PolicyError) as caught:
        Policy(**fields)
    assert caught.value.field == field
    assert way_out in str(caught.value)


SIZES = ["memory", "memory_high", "output", "file_size", "tmp_size", "home_size", "shm_size"]
SECONDS = ["wall_time", "cpu_time", "idle_time", "grace"]
COUNTS = ["processes", "open_files", "tmp_inodes", "home_inodes", "cpu_weight"]
WRONG = [True, False, 0, -1, math.nan, math.inf, -math.inf, "", "12", "x", b"1", [], 10**400]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("field", [*SIZES, *SECONDS, *COUNTS, "cpus"])
def test_a_number_is_real_finite_positive_and_in_range(field, value):
    if (field, value) == ("cpus", "12"):  # CPUs have no unit, so plain text is right
        value = "12 cpus"
    with pytest.raises(PolicyError) as caught:
        Limits(**{field: value})
    assert caught.value.field == field
    assert "give" in str(caught.value) or "write" in str(caught.value)


@pytest.mark.parametrize("field", ["output", "open_files", "processes", "grace", "tmp_size", "tmp_inodes", "home_size", "shm_size"])
def test_what_protects_the_host_cannot_be_unlimited(field):
    with pytest.raises(PolicyError, match="cannot be unlimited: give") as caught:
        Limits(**{field: None})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["wall_time", "cpu_time", "memory", "file_size", "cpus"])
def test_none_is_no_limit_and_text_can_say_it(field):
    assert Limits(**{field: None}) == Limits(**{field: "none"})


@pytest.mark.parametrize(
    ("field", "value", "way_out"),
    [
        ("processes", 4_194_304, "give 1 to 4194303"),
        ("cpu_weight", 10_001, "give 1 to 10000"),
        ("open_files", 1_048_577, "give 8 to 1048576"),
        ("memory", 1 << 63, "to 4E"),
        ("cpus", 0.001, "give 0.01 to 8192"),
        ("grace", 3601, "to 3600s"),
        ("cpuset", "0-", "'0-3,8'"),
        ("cpuset", "3-1", "'0-3,8'"),
        ("cpuset", "0,3-1", "'0-3,8'"),
        ("cpuset", 1, "'0-3,8'"),
        ("io", "254:0 rbps=1", "give a list"),
        ("io", ["254:0"], "254:0 rbps=1048576"),
        ("io", ["254:0 rbps=0"], "254:0 rbps=1048576"),
        ("io", ["254:0 rbps=1", "254:0 wbps=2 rbps=3"], "name it once"),
    ],
)
def test_the_kernels_own_ranges_are_named(field, value, way_out):
    with pytest.raises(PolicyError) as caught:
        Limits(**{field: value})
    assert caught.value.field == field
    assert way_out in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from([*Policy.model_fields, "other"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(),
            st.binary(),
            st.lists(st.text()),
            st.dictionaries(st.text(), st.text()),
        ),
    )
)
def test_callers_never_see_a_validation_error(fields):
    try:
        Policy(**fields)
    except ValidationError:
        raise AssertionError("a pydantic error came out") from None
    except PolicyError:
        pass


def test_replacing_limits_by_a_mapping_changes_only_those_named():
    policy = Policy(limits=Limits(memory="1G")).replace(workspace="/w", limits={"cpus": 1})
    assert policy == Policy(workspace="/w", limits=Limits(memory="1G", cpus=1))


def test_a_limit_given_as_a_field_is_pointed_to_its_table():
    with pytest.raises(PolicyError, match=r"limits=\{'memory': …\}"):
        Policy().replace(memory="1G")


def test_what_can_be_required_is_every_strong_mechanism():
    assert set(STRONG_MECHANISMS) == {*_ANYWHERE.values(), *(strong for _, strong, _ in _BY_CONTROLLER.values())}
