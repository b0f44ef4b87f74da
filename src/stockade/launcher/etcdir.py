"""The /etc that jobs see: identity files of our own, and copies of the few host files that programs need.

It is made once, when an executor starts, in the executor's private directory. Copies, not binds: nothing that appears in the
host's /etc later can come into sight, and one bind is cheaper than twenty.
"""

from __future__ import annotations

import os
import stat

from stockade.sandbox.spec import JOB_GID, JOB_HOME, JOB_UID, JOB_USER

HOSTNAME = "stockade"
MAX_FILE = 4 << 20
MAX_FILES = 4000

# Each is a file or a directory that libraries and tool-chains read; none holds a secret or names a user of the host.
ALLOWED = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "gprofng.rc",
    "host.conf", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "lsb-release", "magic", "magic.mime",
    "mime.types", "networks", "openmpi", "os-release", "perl", "profile", "profile.d", "protocols", "pki", "python3", "python3.10",
    "python3.11", "python3.12", "python3.13", "python3.14", "rpc", "services", "skel", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone", "xattr.conf",
)  # fmt: skip
ALLOWED_PREFIXES = ("java-", "jvm-")  # configuration of a JDK, which /usr/lib/jvm links to


def synthesized() -> dict[str, str]:
    """The files that describe who and where a job is, without a word about the host."""
    return {
        "passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{JOB_USER}:x:{JOB_UID}:{JOB_GID}:job:{JOB_HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\ntty:x:5:\n{JOB_USER}:x:{JOB_GID}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback {HOSTNAME}\n",
        "hostname": f"{HOSTNAME}\n",
        "resolv.conf": "# no name server: this sandbox has no network but its own loopback\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
        "mtab": "",
    }


def compose(source: str, target: str) -> None:
    """Fills the empty directory `target` with what jobs see of the /etc at `source`. Only world-readable files are copied."""
    budget = [MAX_FILES]
    try:
        names = sorted(os.listdir(source))
    except FileNotFoundError:
        names = []
    for name in (*ALLOWED, *(name for name in names if name.startswith(ALLOWED_PREFIXES))):
        _copy(f"{source}/{name}", f"{target}/{name}", budget)
    for name, text in synthesized().items():
        path = f"{target}/{name}"
        if name == "mtab":
            os.symlink("/proc/self/mounts", path)
            continue
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(path, 0o644)


def _copy(source: str, target: str, budget: list[int]) -> None:
    try:
        found = os.lstat(source)
    except OSError:
        return
    budget[0] -= 1
    if budget[0] < 0:
        return
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(found.st_mode):
        if found.st_mode & 0o005 == 0o005:
            os.makedirs(target, 0o755, exist_ok=True)
            for name in sorted(os.listdir(source)):
                _copy(f"{source}/{name}", f"{target}/{name}", budget)
    elif stat.S_ISREG(found.st_mode) and found.st_mode & 0o004 and found.st_size <= MAX_FILE:
        with open(source, "rb") as original, open(target, "xb") as copy:
            copy.write(original.read(MAX_FILE))
        os.chmod(target, 0o755 if found.st_mode & 0o001 else 0o644)
