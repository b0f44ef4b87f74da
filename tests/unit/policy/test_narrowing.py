"""Narrowing is checked against a comparison of its own: what each policy lets a job do, asked point by point."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.errors import NotAllowed, PolicyError
from stockade.policy.command import command
from stockade.policy.environment import job_environment
from stockade.policy.model import Limits, Network, Policy
from stockade.policy.narrowing import LIMIT_ORDERS, ORDERS

PATHS = ["/w", "/w/a", "/w/a/b", "/d", "/d/x"]
PROBES = [*PATHS, "/w/other", "/w/a/other", "/w/a/b/other", "/d/other", "/d/x/other", "/elsewhere"]
CALLER = {"LC_ALL": "C", "EDITOR": "vi", "API_TOKEN": "s3cret", "PROXY": "http://u:p@h", "LD_PRELOAD": "x"}


@st.composite
def fields(draw):
    return {**draw(paths()), **draw(others())}


@st.composite
def paths(draw):
    kinds = draw(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(["ro", "rw", "workspace"])), unique_by=lambda kind: kind[0]))
    workspaces = [path for path, kind in kinds if kind == "workspace"]
    return {
        "workspace": workspaces[0] if workspaces else None,
        "ro": [path for path, kind in kinds if kind == "ro"],
        "rw": [path for path, kind in kinds if kind == "rw"] + workspaces[1:],
    }


@st.composite
def others(draw):
    return {
        "root": draw(st.sampled_from(["host", "/image"])),
        "executables": draw(st.none() | st.lists(st.sampled_from(["sh", "git", "/bin/sh"]), unique=True)),
        "path": draw(st.lists(st.sampled_from(["/a", "/b", "/c"]), min_size=1, unique=True)),
        "env": draw(st.dictionaries(st.sampled_from([*CALLER, "MINE"]), st.sampled_from(["1", "2"]))),
        "inherit_env": draw(st.booleans() | st.lists(st.sampled_from([name for name in CALLER if name != "LD_PRELOAD"]), unique=True)),
        "network": draw(st.sampled_from(list(Network))),
        "seccomp": draw(st.sampled_from(["strict", "default", "debug", "/p.json", "/q.json"])),
        "hostname": draw(st.sampled_from(["a", "b"])),
        "limits": draw(limits()),
        "require": draw(st.frozensets(st.sampled_from(["memory.cgroup", "io.cgroup"]))),
        "overflow": draw(st.sampled_from(["kill", "keep-tail"])),
        "merge_streams": draw(st.booleans()),
    }


def limits():
    numbers = {
        name: st.sampled_from([1 << 23, 1 << 24, *([None] if Limits.model_fields[name].default is None else [])])
        for name in ("memory_high", "output", "file_size", "tmp_size", "home_size", "shm_size")
    }
    counts = {name: st.sampled_from([100, 1000]) for name in ("processes", "open_files", "tmp_inodes", "home_inodes", "grace")}
    flags = {name: st.booleans() for name in ("count_frozen", "memory_oom_group")}
    unbounded = {name: st.sampled_from([None, 10, 20]) for name in ("wall_time", "cpu_time", "idle_time", "cpus")}
    rest = {
        "memory": st.sampled_from([None, 1 << 24, 1 << 25]),
        "cpu_weight": st.sampled_from([None, 50, 100, 200]),
        "cpuset": st.sampled_from([None, "0", "0-1", "1,0", "2"]),
        "io": st.sampled_from([(), ("8:0 rbps=10",), ("8:0 rbps=20",), ("8:0 rbps=10 wbps=5",), ("8:1 rbps=10", "8:0 rbps=5")]),
    }
    return st.fixed_dictionaries({}, optional={**numbers, **counts, **flags, **unbounded, **rest})


POLICIES = fields().map(lambda parts: Policy(**parts))


@st.composite
def changes(draw, policy):
    """Some fields, each of them valid in itself; paths are those granted with access drawn anew, so that many are narrower."""
    if draw(st.booleans()):
        parts = draw(fields())
        return {name: parts[name] for name in draw(st.sets(st.sampled_from(list(parts)), min_size=1, max_size=2))}
    if draw(st.booleans()):
        value = draw(limits())
        return {
            "limits": {name: value[name] for name in draw(st.sets(st.sampled_from(list(value) or ["io"]), max_size=2)) if name in value}
        }
    granted = [*policy.ro, *policy.rw, *([policy.workspace] if policy.workspace else [])]
    kinds = {path: draw(st.sampled_from(["ro", "rw", "workspace", "none"])) for path in granted}
    return {
        "workspace": policy.workspace if kinds.get(policy.workspace) == "workspace" else None,
        "ro": [path for path, kind in kinds.items() if kind == "ro"],
        "rw": [path for path, kind in kinds.items() if kind == "rw"],
    }


LEVELS = {None: 0, "ro": 1, "rw": 2}


def reach(policy, probe):
    """What a job can do at a host path: the longest granted prefix decides."""
    steps = probe.split("/")
    for length in range(len(steps), 1, -1):
        prefix = "/".join(steps[:length])
        if prefix in policy.rw or prefix == policy.workspace:
            return "rw"
        if prefix in policy.ro:
            return "ro"
    return None


def widest(value):
    return float("inf") if value is None else value


def cpus_of(written):
    every = set(range(10))
    if written is None:
        return every
    return {number for part in written.split(",") for number in every if int(part.split("-")[0]) <= number <= int(part.split("-")[-1])}


def io_cap(lines, device, key):
    for line in lines:
        words = line.split()
        if words[0] == device:
            for word in words[1:]:
                if word.startswith(key + "="):
                    return int(word.split("=")[1])
    return float("inf")


def is_within(new, old):
    """Everything that `new` allows is allowed by `old`; written without a look at the tables."""
    seen = [job_environment(policy, command(["x"]), "/", CALLER) for policy in (new, old)]
    leaked = [{name for name, value in CALLER.items() if environment.get(name) == value} for environment in seen]
    yield "reach", all(LEVELS[reach(new, probe)] <= LEVELS[reach(old, probe)] for probe in PROBES)
    yield "root", new.root == old.root
    yield (
        "executables",
        all(old.executables is None or name in old.executables for name in ([] if new.executables is None else new.executables)),
    )
    yield "executables none", new.executables is not None or old.executables is None
    yield "path", "".join(new.path) in {"".join(p) for p in subsequences(old.path)}
    yield "leaks", leaked[0] <= leaked[1]
    yield "env", set(new.env.items()) <= set(old.env.items())
    yield "network", (new.network, old.network) != (Network.LOOPBACK, Network.NONE)
    yield (
        "seccomp",
        new.seccomp == old.seccomp or (new.seccomp, old.seccomp) in {("strict", "default"), ("strict", "debug"), ("default", "debug")},
    )
    yield "require", old.require <= new.require
    yield "overflow", not (new.overflow == "keep-tail" and old.overflow == "kill")
    for name in (
        "wall_time cpu_time idle_time grace memory memory_high processes cpus output open_files file_size "
        "tmp_size tmp_inodes home_size home_inodes shm_size"
    ).split():
        yield name, widest(getattr(new.limits, name)) <= widest(getattr(old.limits, name))
    for name in ("count_frozen", "memory_oom_group"):
        yield name, getattr(new.limits, name) or not getattr(old.limits, name)
    yield "cpu_weight", (new.limits.cpu_weight or 100) <= (old.limits.cpu_weight or 100)
    yield "cpuset", cpus_of(new.limits.cpuset) <= cpus_of(old.limits.cpuset)
    for device in ("8:0", "8:1"):
        for key in ("rbps", "wbps"):
            yield f"io {device} {key}", io_cap(new.limits.io, device, key) <= io_cap(old.limits.io, device, key)


def subsequences(entries):
    if not entries:
        return [()]
    rest = subsequences(entries[1:])
    return rest + [(entries[0], *tail) for tail in rest]


def wider(new, old):
    return [what for what, holds in is_within(new, old) if not holds]


RELAXED = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)


def narrowed(policy, change):
    try:
        return policy.narrow(**change)
    except (NotAllowed, PolicyError):
        return None


@RELAXED
@given(POLICIES, st.data())
def test_narrowing_refuses_or_gives_what_is_within(policy, data):
    change = data.draw(changes(policy))
    result = narrowed(policy, change)
    if result is not None:
        assert wider(result, policy) == []
        assert result.narrow(**change) == result


@RELAXED
@given(POLICIES, st.data())
def test_narrowing_twice_stays_within_the_first(policy, data):
    once = narrowed(policy, data.draw(changes(policy)))
    twice = once and narrowed(once, data.draw(changes(once)))
    if twice:
        assert wider(twice, policy) == []


@settings(RELAXED, max_examples=200)
@given(paths(), st.dictionaries(st.sampled_from(PATHS), st.sampled_from(["ro", "rw"])))
def test_paths_are_refused_or_within(granted, wanted):
    policy = Policy(**granted)
    change = {kind: [path for path, wanted_kind in wanted.items() if wanted_kind == kind] for kind in ("ro", "rw")}
    result = narrowed(policy, {"workspace": None, **change})
    if result is not None:
        assert wider(result, policy) == []


IO = st.lists(
    st.sampled_from(["8:0 rbps=10", "8:0 rbps=20", "8:0 wbps=5", "8:1 rbps=10"]), max_size=2, unique_by=lambda line: line.split("=")[0]
)


@settings(RELAXED, max_examples=100)
@given(IO, IO)
def test_io_caps_are_refused_or_within(granted, wanted):
    policy = Policy(limits={"io": granted})
    result = narrowed(policy, {"limits": {"io": wanted}})
    if result is not None:
        assert wider(result, policy) == []


@RELAXED
@given(POLICIES)
def test_a_policy_is_within_itself(policy):
    assert policy.narrow() == policy
    assert policy.narrow(**{name: getattr(policy, name) for name in Policy.model_fields}) == policy


def test_every_field_has_an_order():
    assert list(ORDERS) == list(Policy.model_fields)
    assert list(LIMIT_ORDERS) == list(Limits.model_fields)


BASE = {
    "workspace": "/w",
    "ro": ["/w/.git", "/data"],
    "rw": ["/cache"],
    "executables": ["git", "python3"],
    "path": ["/usr/bin", "/bin"],
    "env": {"A": "1", "LANG": "C"},
    "inherit_env": ["EDITOR", "LANG"],
    "network": "none",
    "require": ["memory.cgroup"],
    "limits": {"cpus": 2, "cpuset": "0-3", "io": ["8:0 rbps=100"], "cpu_weight": 50},
}


@pytest.mark.parametrize(
    "change",
    [
        {"workspace": None, "ro": ["/data"], "rw": ["/cache"]},
        {"workspace": None, "ro": ["/w"]},
        {"workspace": None, "rw": ["/w"], "ro": ["/w/.git"]},
        {"ro": ["/w/.git"]},
        {"rw": []},
        {"rw": [], "ro": ["/w/.git", "/cache"]},
        {"executables": []},
        {"path": ["/bin"]},
        {"env": {"LANG": "C"}},
        {"inherit_env": False},
        {"inherit_env": ["EDITOR"]},
        {"seccomp": "strict"},
        {"hostname": "other"},
        {"require": ["memory.cgroup", "kill.cgroup"]},
        {"merge_streams": True},
        {"limits": {"memory": "16M", "wall_time": 1, "cpus": 0.5, "cpuset": "1", "io": ["8:0 rbps=1 wbps=1"], "cpu_weight": 1}},
        {"limits": {"cpu_time": 10, "file_size": "1G", "idle_time": 5, "memory_high": "8M"}},
    ],
)
def test_what_is_tighter_is_taken_over(change):
    policy = Policy(**BASE)
    assert policy.narrow(**change) == policy.replace(**change)


@pytest.mark.parametrize(
    ("change", "field", "in_force", "way_out"),
    [
        ({"workspace": "/w/sub"}, "workspace", "/w", "give /w or None"),
        ({"workspace": "/other"}, "workspace", "/w", "give /w or None"),
        ({"ro": ["/w/.git", "/data/sub"]}, "ro", "/data", "exactly"),
        ({"ro": ["/w/.git", "/etc"]}, "ro", "/data", "exactly"),
        ({"rw": ["/cache", "/data"], "ro": ["/w/.git"]}, "rw", "read-only", "name '/data' in ro"),
        ({"ro": ["/data"]}, "ro", "/w/.git", "keep '/w/.git' in ro"),
        ({"root": "/image"}, "root", "host", "only host"),
        ({"executables": None}, "executables", "[git, python3]", "some of git, python3"),
        ({"executables": ["sh"]}, "executables", "[git, python3]", "some of git, python3"),
        ({"path": ["/bin", "/usr/bin"]}, "path", "/usr/bin, /bin", "in this order"),
        ({"env": {"A": "2"}}, "env", "{A, LANG}", "its own env"),
        ({"env": {"A": "1"}}, "env", "LANG", "keep LANG in env"),
        ({"inherit_env": True}, "inherit_env", "[EDITOR, LANG]", "some of EDITOR, LANG, or false"),
        ({"inherit_env": ["HOME"]}, "inherit_env", "[EDITOR, LANG]", "some of EDITOR, LANG, or false"),
        ({"network": "loopback"}, "network", "none", "give none"),
        ({"seccomp": "debug"}, "seccomp", "default", "give strict, default"),
        ({"seccomp": "/p.json"}, "seccomp", "default", "give strict, default"),
        ({"require": []}, "require", "[memory.cgroup]", "all of memory.cgroup and more"),
        ({"overflow": "keep-tail"}, "overflow", "kill", "give kill"),
        ({"limits": {"memory": "1G"}}, "limits.memory", "536870912", "at most 512M"),
        ({"limits": {"memory": None}}, "limits.memory", "536870912", "at most 512M"),
        ({"limits": {"wall_time": "1h"}}, "limits.wall_time", "120.0", "at most 120s"),
        ({"limits": {"grace": 6}}, "limits.grace", "5.0", "at most 5s"),
        ({"limits": {"cpus": 4}}, "limits.cpus", "2.0", "at most 2"),
        ({"limits": {"cpu_weight": None}}, "limits.cpu_weight", "50", "at most 50"),
        ({"limits": {"cpuset": "3-4"}}, "limits.cpuset", "0-3", "some of the CPUs 0-3"),
        ({"limits": {"io": []}}, "limits.io", "8:0 rbps=100", "at most 8:0 rbps=100"),
        ({"limits": {"io": ["8:0 rbps=101"]}}, "limits.io", "8:0 rbps=100", "at most 8:0 rbps=100"),
    ],
)
def test_what_is_wider_is_refused_with_the_limit_in_force_and_what_would_do(change, field, in_force, way_out):
    with pytest.raises(NotAllowed) as caught:
        Policy(**BASE).narrow(**change)
    assert caught.value.field == field
    assert in_force in caught.value.message
    assert way_out in (caught.value.hint or "")


def test_a_weight_that_is_not_set_is_the_kernels_hundred():
    assert Policy().narrow(limits={"cpu_weight": 100}).limits.cpu_weight == 100
    with pytest.raises(NotAllowed, match="at most 100"):
        Policy().narrow(limits={"cpu_weight": 101})


def test_naming_what_true_would_pass_over_is_wider():
    with pytest.raises(NotAllowed, match="give false"):
        Policy(inherit_env=True).narrow(inherit_env=["API_TOKEN"])


def test_the_values_of_variables_do_not_appear_in_a_refusal():
    with pytest.raises(NotAllowed) as caught:
        Policy(env={"A": "hunter2"}).narrow(env={"A": "swordfish"})
    assert "hunter2" not in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_a_mistake_is_no_widening():
    with pytest.raises(PolicyError, match="did you mean 'network'"):
        Policy().narrow(netwrk="none")
