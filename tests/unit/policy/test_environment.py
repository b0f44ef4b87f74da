from __future__ import annotations

import pytest

from stockade.policy.command import command
from stockade.policy.environment import is_inherited_by_default, job_environment
from stockade.policy.model import Policy

CLEAN = {
    "GIT_PAGER": "cat",
    "HOME": "/home/job",
    "LANG": "C.UTF-8",
    "LOGNAME": "job",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "PATH": "/usr/bin:/bin",
    "PWD": "/w",
    "SHELL": "/bin/sh",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    "USER": "job",
}
CALLER = {
    "PATH": "/evil",
    "HOME": "/root",
    "LANG": "de_DE.UTF-8",
    "EDITOR": "vi",
    "LD_PRELOAD": "/evil.so",
    "BASH_FUNC_ls%%": "() { evil; }",
    "GITHUB_TOKEN": "t",
    "HTTPS_PROXY": "http://user:pass@proxy",
    "NO_PROXY": "localhost",
}


def environment(policy, inherited=CALLER, **env):
    return job_environment(policy.replace(path=["/usr/bin", "/bin"]), command(["ls"], env=env), "/w", inherited)


def test_the_environment_is_clean_by_default():
    assert environment(Policy()) == CLEAN


def test_the_environment_is_sorted():
    names = list(environment(Policy(env={"A": "1"}), Z="2"))
    assert names == sorted(names)


def test_all_is_inherited_but_secrets_code_and_the_callers_place():
    assert environment(Policy(inherit_env=True)) == {**CLEAN, "LANG": "de_DE.UTF-8", "EDITOR": "vi", "NO_PROXY": "localhost"}


def test_what_is_named_is_inherited_even_where_it_looks_like_a_secret():
    assert environment(Policy(inherit_env=["GITHUB_TOKEN", "HTTPS_PROXY", "MISSING"])) == {
        **CLEAN,
        "GITHUB_TOKEN": "t",
        "HTTPS_PROXY": "http://user:pass@proxy",
    }


def test_the_command_overrides_the_policy_which_overrides_what_is_inherited():
    policy = Policy(inherit_env=["EDITOR", "LANG"], env={"EDITOR": "ed", "TERM": "xterm"})
    assert environment(policy, TERM="vt100") == {**CLEAN, "LANG": "de_DE.UTF-8", "EDITOR": "ed", "TERM": "vt100"}


@pytest.mark.parametrize(
    "name",
    "AWS_SECRET_ACCESS_KEY OPENAI_API_KEY ANTHROPIC_API_KEY GITHUB_TOKEN GH_PAT DB_PASSWORD PGPASSWORD PGPASSFILE SSH_AUTH_SOCK "
    "NPM_CONFIG__AUTH DATABASE_URL SENTRY_DSN KUBECONFIG SESSION_COOKIE private_key MY_CREDENTIALS APIKEY SIGNING_KEY KEY".split(),
)
def test_names_that_look_like_secrets_are_not_inherited_unasked(name):
    assert not is_inherited_by_default(name)


@pytest.mark.parametrize("name", "LANG LC_ALL EDITOR TZ KEYBOARD MONKEY PATTERN COMPILER PYTHONPATH CC".split())
def test_ordinary_names_are(name):
    assert is_inherited_by_default(name)
