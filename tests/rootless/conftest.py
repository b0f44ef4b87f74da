"""These tests run as an ordinary user. Where the test run is root's, the whole directory is run once more as one, and told here.

The user gets what an operator would give: a delegated cgroup (the directory, cgroup.procs, cgroup.subtree_control and
cgroup.threads are the user's, and the process is in it before it drops to the user), a directory of its own, and the supplementary
groups of a login: its own group once more, and another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from support.waiting import SLOWNESS

USER = 12345  # has no name and no entry in any subuid file
BOUND = 170.0 * SLOWNESS  # seconds for all of them
HERE = Path(__file__).parent
ROOT = HERE.parent.parent

Verdicts = dict[str, tuple[str, str]]  # name of a test -> ("failure" | "error" | "skipped" | "passed", what it said)
_verdicts: Verdicts = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if os.geteuid() != 0:
        return None
    if not _verdicts:
        _verdicts.update(_run_as_user())
    verdict, text = _verdicts.get(pyfuncitem.name, ("error", f"the user's run did not get to this test\n{_verdicts['']}"))
    if verdict == "skipped":
        pytest.skip(text)
    if verdict != "passed":
        pytest.fail(f"as user {USER}: {verdict}\n{text}", pytrace=False)
    return True


def _run_as_user() -> Verdicts:
    place = tempfile.mkdtemp(prefix="user-")
    os.chown(place, USER, USER)
    cgroup = f"{os.environ['STOCKADE_CGROUP']}/user"
    os.mkdir(cgroup)
    try:
        for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(os.path.join(cgroup, name), USER, USER)
        done = subprocess.run(
            [
                *("/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', cgroup),
                *("setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={USER},{USER + 1}", "--inh-caps=-all"),
                *(sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
                *("-p", "no:cacheprovider", "--basetemp", f"{place}/tests", f"--junitxml={place}/report.xml", str(HERE)),
            ],
            env={
                **{name: os.environ[name] for name in ("PATH", "KERNEL_MUST_WORK") if name in os.environ},
                "HOME": place,
                "TMPDIR": place,
                "STOCKADE_CGROUP": cgroup,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOUND,
        )
        return {"": ("error", done.stdout[-4000:]), **_read(Path(place, "report.xml"))}
    finally:
        supervisor = f"{cgroup}/stockade-supervisor"
        if os.path.isdir(supervisor):
            os.rmdir(supervisor)
        os.rmdir(cgroup)
        shutil.rmtree(place)


def _read(report: Path) -> Verdicts:
    if not report.exists():
        return {}
    found: Verdicts = {}
    for case in ElementTree.parse(report).iter("testcase"):
        verdict, text = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                verdict, text = child.tag, f"{child.get('message')}\n{child.text or ''}"
        name = str(case.get("name"))
        if found.get(name, ("passed", ""))[0] == "passed":  # an error of the tear-down is a second entry
            found[name] = (verdict, text)
    return found
