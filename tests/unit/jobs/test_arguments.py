"""What callers of the library may pass, and what the settings may be: each refusal names the argument and the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.bank.retention import Retention
from stockade.config import CgroupEntry, Config
from stockade.errors import InvalidRequest
from stockade.jobs import arguments
from stockade.jobs.records import HOST
from stockade.jobs.requests import job_request
from stockade.jobs.states import JobState
from stockade.policy.admission import admit
from stockade.policy.command import command
from stockade.policy.model import Policy

NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "check"),
    [
        pytest.param("policy", lambda: arguments.check_policy(None), id="no policy"),
        pytest.param("policy", lambda: arguments.check_policy({"memory": "1G"}), id="a dict as policy"),
        pytest.param("abort", lambda: arguments.check_abort(True), id="a bool as abort"),
        pytest.param("owner", lambda: arguments.check_start(5, None, None, None), id="owner"),
        pytest.param("session", lambda: arguments.check_start(None, b"s", None, None), id="session"),
        pytest.param("key", lambda: arguments.check_start(None, None, 5, None), id="key"),
        pytest.param("key", lambda: arguments.check_start(None, None, "", None), id="empty key"),
        *(
            pytest.param("owner_limit", lambda limit=limit: arguments.check_start(None, None, None, limit), id=f"limit {limit!r}")
            for limit in (0, -1, True, NAN, 2.0, "2")
        ),
        pytest.param("job", lambda: arguments.check_job(5, HOST), id="job"),
        pytest.param("caller", lambda: arguments.check_job("x", 5), id="caller"),
        *(
            pytest.param("timeout", lambda timeout=timeout: arguments.check_seconds("timeout", timeout), id=f"timeout {timeout!r}")
            for timeout in (NAN, -1, True, "5")
        ),
        *(
            pytest.param("offset", lambda offset=offset: arguments.check_number("offset", offset), id=f"offset {offset!r}")
            for offset in (NAN, -1, True, 1.0, "0", None)
        ),
        pytest.param("limit", lambda: arguments.check_list(HOST, 0, {}), id="no list"),
        pytest.param("status", lambda: arguments.check_list(HOST, 1, {"status": "running"}), id="no such filter"),
        pytest.param("states", lambda: arguments.check_list(HOST, 1, {"states": ["runing"]}), id="no such state"),
        pytest.param("states", lambda: arguments.check_list(HOST, 1, {"states": "running"}), id="a state alone"),
        pytest.param("owner", lambda: arguments.check_list(HOST, 1, {"owner": 5}), id="no owner"),
        pytest.param("before", lambda: arguments.check_list(HOST, 1, {"before": True}), id="no cursor"),
        pytest.param("retention", lambda: arguments.check_retention(5), id="no retention"),
        pytest.param("max_age", lambda: arguments.check_retention(Retention(max_age=NAN)), id="no age"),
        pytest.param("max_count", lambda: arguments.check_retention(Retention(max_count=-1)), id="no count"),
        pytest.param("max_bytes", lambda: arguments.check_retention(Retention(max_bytes=True)), id="no bytes"),
    ],
)
def test_what_is_none_is_refused_with_its_name_and_the_way_out(field: str, check: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check()
    assert caught.value.field == field
    assert caught.value.hint


def test_what_is_meant_passes() -> None:
    arguments.check_policy(Policy())
    arguments.check_start("me", None, "k", 1)
    arguments.check_job("x", None)
    arguments.check_number("limit", 10**30)
    arguments.check_seconds("timeout", 0)
    arguments.check_seconds("timeout", float("inf"))
    arguments.check_list("me", 10**9, {"states": {JobState.RUNNING, "failed"}, "owner": None, "session": "s", "before": 7})
    arguments.check_retention(Retention(max_age=0, max_count=0))


async def test_an_event_may_abort() -> None:
    arguments.check_abort(asyncio.Event())
    arguments.check_abort(None)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("state_dir", {"state_dir": ""}),
        ("state_dir", {"state_dir": "a\0b"}),
        ("state_dir", {"state_dir": 5}),
        ("cgroup", {"cgroup": ""}),
        ("cgroup_entry", {"cgroup_entry": "sideways"}),
        ("standby", {"standby": "yes"}),
        ("max_jobs", {"max_jobs": 0}),
        ("max_jobs", {"max_jobs": True}),
        ("max_jobs", {"max_jobs": NAN}),
        ("statedir", {"statedir": "/srv/state"}),
    ],
)
def test_a_setting_that_is_none_is_refused_in_our_words(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Config(**settings)
    assert caught.value.field == field
    assert "state_dir" in str(caught.value.hint)
    assert caught.value.__context__ is None


def test_settings_take_paths_of_any_kind(tmp_path: Path) -> None:
    assert Config(state_dir=tmp_path, cgroup_entry="join") == Config(state_dir=str(tmp_path), cgroup_entry=CgroupEntry.JOIN)


def test_with_a_key_the_request_has_a_digest_of_what_the_program_is_given() -> None:
    def digest(key: str | None = "k", **parts: Any) -> str | None:
        plan = InvalidRequest("no plan", field="x")
        return job_request(admit(Policy(), command(["true"], **parts)), plan, owner=None, session=None, key=key).input

    different = [{}, {"env": {"A": "B"}}, {"env": {"A": "C"}}, {"replace_env": True}, {"stdin": b""}, {"stdin": b"x"}]
    assert len({digest(**parts) for parts in different}) == len(different)
    assert digest(env={"A": "B", "C": "D"}) == digest(env={"C": "D", "A": "B"})
    assert digest(key=None) is None
