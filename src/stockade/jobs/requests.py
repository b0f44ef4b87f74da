"""What is recorded of a start before anything is made: the request, a digest of its policy, and what will hold the job."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Final

from stockade.errors import StockadeError
from stockade.jobs.records import JobRequest
from stockade.policy.admission import Admitted
from stockade.policy.command import Command
from stockade.policy.model import Policy
from stockade.sandbox.spec import Identity, SandboxSpec

_LAYERS: Final = "user mount pid ipc uts net cgroup"


def job_request(
    admitted: Admitted, plan: SandboxSpec | StockadeError, *, owner: str | None, session: str | None, key: str | None
) -> JobRequest:
    """The request as it is recorded; of a plan that could not be made, the command alone."""
    planned = plan if isinstance(plan, SandboxSpec) else None
    return JobRequest(
        argv=admitted.command.argv,
        cwd=admitted.cwd if planned is None else planned.cwd,
        label=admitted.command.title,
        owner=owner,
        session=session,
        key=key,
        policy=_digest_of(_Same(admitted.policy)),
        input=None if key is None else _input_of(admitted.command),
        interactive=admitted.command.takes_input,
        tty=admitted.command.tty is not None,
        isolation={} if planned is None else _isolation(planned),
    )


def _input_of(command: Command) -> str:
    """A digest of what the program is given besides argv; what it was cannot be read from it.

    Of input that is written while the job runs, it holds by which way that comes; the size of a terminal can change and is left out.
    """
    stdin = None if command.stdin is None else hashlib.sha256(command.stdin).hexdigest()
    if command.takes_input:
        stdin = "pipe" if command.tty is None else "terminal"
    text = json.dumps([sorted(command.env.items()), command.replace_env, stdin])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Same:
    """A policy as a key by identity: most jobs of an executor have the very same one, and it is frozen."""

    def __init__(self, value: Policy) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


@functools.lru_cache(maxsize=64)
def _digest_of(policy: _Same) -> str:
    fields = policy.value.model_dump(mode="json")
    fields["require"] = sorted(fields["require"])  # a set has another order in each process
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def _isolation(spec: SandboxSpec) -> dict[str, str]:
    """What holds a job, layer by layer; part of every record."""
    who = "its own range of host ids" if spec.identity is Identity.RANGE else "the caller's own id"
    layers = {f"namespace.{name}": "own" for name in _LAYERS.split()}
    return {
        **layers,
        "identity": who,
        "root": "own tmpfs, host trees read-only, pivoted",
        "capabilities": "none, securebits locked",
        "no_new_privs": "on",
        "seccomp": spec.seccomp,
        "nested_namespaces": "user.max_*_namespaces = 0",
        "network": "loopback" if spec.loopback else "none",
        **dict(spec.mechanisms),
    }
