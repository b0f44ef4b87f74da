"""Bearer tokens: who may speak to the HTTP server, and which client is which."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stockade.errors import InvalidRequest

SHORTEST: Final = 16  # characters
LARGEST_FILE: Final = 64 << 10


def read_tokens(path: str | None, variable: str | None) -> tuple[str, ...]:
    """The tokens of a file, one a line, or else of an environment variable's value; none where neither is there.

    Raises: InvalidRequest where the file cannot be read or others may, or where a token is too short to be one.
    """
    if path is not None:
        lines = _private_text(path).splitlines()
        tokens = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
        if not tokens:
            raise InvalidRequest(f"--token-file: {path!r} has no token in it", field="token_file", hint="write one a line")
    else:
        tokens = (variable.strip(),) if variable else ()
    for token in tokens:
        if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidRequest(
                f"a token must have at least {SHORTEST} ASCII characters and no space",
                field="token_file",
                hint="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
    return tokens


def _private_text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise InvalidRequest(f"--token-file: {path!r} cannot be read: {why}", field="token_file") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidRequest(f"--token-file: others may read {path!r}", field="token_file", hint=f"chmod 600 {path}")
    return text


class BearerTokens:
    """Lets requests through that carry one of the tokens, and says by whom they are; an ASGI application around another."""

    def __init__(self, app: ASGIApp, tokens: tuple[str, ...]) -> None:
        self._app = app
        self._digests = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        # Every token is compared, in constant time: how long it takes tells nothing.
        known = [hmac.compare_digest(digest, each) for each in self._digests]
        if kind.lower() != "bearer" or not any(known):
            refusal = PlainTextResponse("a bearer token is needed: Authorization: Bearer TOKEN\n", 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        # The name is made from the token, so that a client keeps what is its own when the server starts anew.
        name = hashlib.sha256(b"stockade client " + digest).hexdigest()[:16]
        user = AuthenticatedUser(AccessToken(token=name, client_id=name, scopes=[]))
        await self._app({**scope, "user": user}, receive, send)
