"""Git repositories for tests, made on the host by the real git, with nobody's configuration but what is written here."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.waiting import SLOWNESS

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}


def git(directory: Path, *arguments: str) -> str:
    """Runs git on the host; its output without the last newline."""
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=_ENVIRONMENT, check=True, capture_output=True, text=True, timeout=60 * SLOWNESS
    )
    return done.stdout.rstrip("\n")


def commit(repository: Path, message: str, **files: str | None) -> str:
    """Writes the files (None removes one; `a__b` stands for `a/b`), commits everything and returns the commit's hash."""
    for name, content in files.items():
        place = repository / name.replace("__", "/")
        if content is None:
            place.unlink()
        else:
            place.parent.mkdir(exist_ok=True)
            place.write_text(content)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(repository, "rev-parse", "HEAD")


def make_repository(place: Path) -> Path:
    """A repository with two commits on main, one more on feature, and a file that was deleted."""
    place.mkdir(mode=0o755)
    git(place, "init", "--quiet", "--initial-branch=main")
    commit(place, "first", notes="".join(f"line {number}\n" for number in range(1, 301)), src__main="one\n", gone="soon\n")
    git(place, "branch", "feature")
    commit(place, "second", src__main="two\n", gone=None)
    git(place, "checkout", "--quiet", "feature")
    commit(place, "third", src__feature="three\n")
    git(place, "checkout", "--quiet", "main")
    return place
