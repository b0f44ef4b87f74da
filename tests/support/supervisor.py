"""A host application that is careless with what it holds: it leaks three inheritable descriptors, has secrets in its environment and
on its command line, and runs one program several times at once.

    supervisor.py WORKSPACE STATE TOKEN_FILE COUNT PROGRAM [SECRET]      prints what each job wrote, as a JSON list
"""

from __future__ import annotations

import os
import resource
import socket
import sys

LEAKED = (3, 77, 2048)


def leak(token_file: str) -> list[socket.socket]:
    """A file, a directory and a socket as inheritable descriptors 3, 77 and 2048."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 2048 is beyond what is usual
    pair = socket.socketpair()
    os.dup2(os.open(token_file, os.O_RDWR), LEAKED[0])
    os.dup2(os.open(os.path.dirname(token_file), os.O_RDONLY | os.O_DIRECTORY), LEAKED[1])
    os.dup2(pair[0].fileno(), LEAKED[2])
    assert all(os.get_inheritable(number) for number in LEAKED)
    return list(pair)


def main() -> None:
    workspace, state, token_file, count, program = sys.argv[1:6]
    pair = leak(token_file)
    import asyncio
    import json

    from stockade import Executor, Policy
    from stockade.config import from_environment

    async def run() -> list[str]:
        async with Executor(Policy(workspace=workspace), config=from_environment(state_dir=state)) as executor:
            results = await asyncio.gather(*(executor.run([program]) for _ in range(int(count))))
            return [result.stdout.decode("utf-8", "replace") for result in results]

    print(json.dumps(asyncio.run(run())))
    for end in pair:
        end.close()


if __name__ == "__main__":
    main()
