from __future__ import annotations

import pytest

from stockade.errors import PolicyError
from stockade.policy.model import Limits, Policy
from stockade.policy.profiles import PROFILES, profile
from stockade.sandbox.spec import GiB


def test_untrusted_is_the_default_policy():
    assert profile("untrusted") == Policy()


def test_debug_differs_in_its_filter_alone():
    assert profile("debug") == Policy(seccomp="debug")


def test_build_has_room_and_no_more_reach():
    build = profile("build")
    assert build.replace(limits=Limits()) == Policy()
    assert (build.limits.memory, build.limits.tmp_size) == (4 * GiB, 2 * GiB)


def test_changes_are_laid_over_a_profile():
    assert profile("build", workspace="/w", limits={"memory": "8G"}) == PROFILES["build"].replace(workspace="/w", limits={"memory": "8G"})


@pytest.mark.parametrize(
    ("name", "way_out"), [("biuld", "did you mean 'build'"), ("", "untrusted, build, debug"), (None, "untrusted, build, debug")]
)
def test_an_unknown_name_is_refused_with_those_that_are_known(name, way_out):
    with pytest.raises(PolicyError, match=way_out) as caught:
        profile(name)
    assert caught.value.field == "profile"


def test_profiles_cannot_be_changed():
    with pytest.raises(TypeError):
        PROFILES["mine"] = Policy()
