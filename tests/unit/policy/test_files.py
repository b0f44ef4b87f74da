from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import PolicyError
from stockade.policy.files import load_policy
from stockade.policy.model import Policy
from stockade.policy.profiles import profile

WHOLE = """
profile = "build"
workspace = "/srv/work"
ro = ["/data"]
executables = ["python3"]
inherit_env = ["LANG"]
network = "none"
require = ["memory.cgroup"]

[env]
CI = "1"

[limits]
memory = "8G"
wall_time = "1h"
cpus = 2
memory_high = "none"
"""


def test_a_file_is_laid_over_the_profile_that_it_names():
    assert load_policy(WHOLE, origin="p.toml") == profile(
        "build",
        workspace="/srv/work",
        ro=["/data"],
        executables=["python3"],
        inherit_env=["LANG"],
        network="none",
        require=["memory.cgroup"],
        env={"CI": "1"},
        limits={"memory": "8G", "wall_time": 3600, "cpus": 2},
    )


def test_an_empty_file_is_the_default_policy():
    assert load_policy("", origin="p.toml") == Policy()


@pytest.mark.parametrize(
    ("text", "field", "way_out"),
    [
        ("memry = 1", "memry", "known: "),
        ("netwrk = 'none'", "netwrk", "did you mean 'network'"),
        ("memory = '1G'", "memory", "limits={'memory'"),
        ("[limits]\nmemry = 1", "limits.memry", "did you mean 'memory'"),
        ("[limits]\nmemory = '512'", "limits.memory", "write '512M'"),
        ("[limits]\nmemory = 1979-05-27", "limits.memory", "'512M'"),
        ("limits = 1", "limits", "give Limits"),
        ("env = {A = 1}", "env", "give a str"),
        ("ro = ['data']", "ro", "is not absolute"),
        ("profile = 'biuld'", "profile", "did you mean 'build'"),
        ("profile = 1", "profile", "untrusted, build, debug"),
        ("name = 'x'", "name", "known: "),
        ("self = 'x'", "self", "known: "),
        ("ro = [", "policy", "not TOML: invalid value"),
        ("ro = []\nro = []", "policy", "not TOML: cannot overwrite"),
        ("a = " + "[" * 5000, "policy", "p.toml"),
    ],
)
def test_what_is_wrong_is_refused_by_key_and_file(text, field, way_out):
    with pytest.raises(PolicyError) as caught:
        load_policy(text, origin="p.toml")
    assert caught.value.field == field
    assert caught.value.message.startswith("p.toml: ")
    assert way_out in str(caught.value)


@given(st.text())
def test_any_text_is_a_policy_or_a_typed_error(text):
    try:
        load_policy(text, origin="p.toml")
    except PolicyError:
        pass
