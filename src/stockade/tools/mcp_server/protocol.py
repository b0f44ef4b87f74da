"""The tools as an MCP server: lists, calls with progress and cancellation, and what commands wrote as resources.

An operation runs as a task of its own, outside of the request's cancel scope: a cancelled request cancels the task once, and waits
until what it had begun has been ended and recorded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from stockade.bank.windows import MAX_BYTES, BytePage
from stockade.errors import StockadeError
from stockade.jobs.records import JobRecord
from stockade.tools.cli.render import printable
from stockade.tools.mcp_server.default_tools import STREAM, DefaultTools
from stockade.tools.mcp_server.surfaces import DefaultOffer, Offer
from stockade.tools.schemas import CallContext

Context = ServerRequestContext[Any, Any]

NAME: Final = "stockade"
VERSION: Final = version(NAME)
PROGRESS: Final = 3.0  # seconds between two notifications
LISTED: Final = 100  # commands whose output is listed as resources
SCHEME: Final = "stockade"
ONE_PIPE: Final = "mcp-stdio"  # the owner of what the client at our stdin starts
ANYBODY: Final = "mcp-http"  # the owner where no client has a token or a session

INSTRUCTIONS: Final = (
    "Runs commands in sandboxes on Linux. Each has an id; what it wrote is kept and can be read by it, also after its end."
)


def make_server(offer: Offer, *, progress: float = PROGRESS) -> Server[Any]:
    """A server that has `offer` on offer; which transport it speaks is decided by whoever runs it."""
    handlers = _Handlers(offer, progress)
    default = offer.default if isinstance(offer, DefaultOffer) else None
    resources = None if default is None else _Resources(default)
    return Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=None if resources is None else resources.list,
        on_list_resource_templates=None if resources is None else resources.templates,
        on_read_resource=None if resources is None else resources.read,
    )


def owner_of(context: Context) -> str:
    """To whom a request belongs: the pipe; the session, where there is one; else the token."""
    request = context.request
    if request is None:
        return ONE_PIPE
    user = request.scope.get("user")
    client = ANYBODY if user is None else f"{ANYBODY}-{user.display_name}"
    # Only in the protocol's older versions is a session one that the transport has looked up.
    session = request.headers.get("mcp-session-id") if context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else None
    return client if session is None else f"{client}-{session}"


class _Handlers:
    def __init__(self, offer: Offer, progress: float) -> None:
        self._offer = offer
        self._progress = progress
        self._sessions: set[str] = set()

    async def list_tools(self, context: Context, params: object) -> types.ListToolsResult:
        tools = await self._offer.tools(self._owner(context))
        return types.ListToolsResult(tools=[types.Tool.model_validate(each, by_alias=True) for each in tools.mcp()])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        owner = self._owner(context)
        tools = await self._offer.tools(owner)
        if params.name not in tools:
            known = ", ".join(tools.names)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; the tools are {known}")
        call = asyncio.create_task(tools.call(params.name, params.arguments or {}, CallContext(owner)), name=f"stockade-{params.name}")
        try:
            began = time.monotonic()
            while not (await asyncio.wait({call}, timeout=self._progress))[0]:
                passed = round(time.monotonic() - began, 1)
                await context.session.report_progress(passed, None, f"{params.name} has been running for {passed:.0f} s")
        finally:
            if not call.done():
                call.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({call})
        return _result(call.result())

    def _owner(self, context: Context) -> str:
        """The owner; the end of a session is the end of what it has started, since nobody could ask for it any more."""
        owner = owner_of(context)
        if context.request is not None and context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and owner not in self._sessions:
            self._sessions.add(owner)

            async def end() -> None:
                self._sessions.discard(owner)
                await self._offer.end(owner)

            # The SDK makes this stack for handlers to push to, and has no public way to it.
            context.session._connection.exit_stack.push_async_callback(end)  # noqa: SLF001
        return owner


def _result(given: Mapping[str, Any]) -> types.CallToolResult:
    """Text only: clients show a model structured content in place of the text, not beside it."""
    failed = bool(given.get("isError"))
    if failed:
        text = str(given.get("error", ""))
    elif (told := given.get("text", given.get("output"))) is not None and set(given) <= {"text", "output", "metadata"}:
        text = str(told)
    else:
        text = json.dumps(dict(given), ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)


class _Resources:
    """What commands wrote, at `stockade://job/ID/output`: exact bytes, in pieces of up to 1 MiB."""

    def __init__(self, tools: DefaultTools) -> None:
        self._tools = tools

    async def list(self, context: Context, params: object) -> types.ListResourcesResult:
        records = await self._tools.records(owner_of(context), limit=LISTED)
        return types.ListResourcesResult(resources=[_resource(handle, record) for handle, record in records if record.error is None])

    async def templates(self, context: Context, params: object) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="output",
            uri_template=f"{SCHEME}://job/{{id}}/{STREAM}{{?offset}}",
            description=f"What a command wrote, as it wrote it, from byte `offset` on; at most {MAX_BYTES:,} bytes at a time.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        handle, offset = _understood(params.uri)
        try:
            page = await self._tools.look(handle, owner_of(context), lambda reader: reader.read_bytes(offset))
        except StockadeError as error:
            raise MCPError(types.INVALID_PARAMS, str(error), {"uri": params.uri}) from None
        return types.ReadResourceResult(contents=[_contents(params.uri, page)])


def _resource(handle: str, record: JobRecord) -> types.Resource:
    return types.Resource(
        uri=f"{SCHEME}://job/{handle}/{STREAM}",
        name=printable(f"{handle} {record.label or ''}".strip()),
        description=record.sentence(),
        size=record.stdout_bytes if record.settled else None,
    )


def _understood(uri: str) -> tuple[str, int]:
    try:
        parts = urlsplit(uri)
    except ValueError:  # half an IPv6 address
        parts = urlsplit("")
    handle, _, stream = parts.path.removeprefix("/").partition("/")
    query = dict(parse_qsl(parts.query))
    offset = query.pop("offset", "0")
    if parts.scheme != SCHEME or parts.netloc != "job" or stream != STREAM or query or not (offset.isascii() and offset.isdecimal()):
        raise MCPError(
            types.INVALID_PARAMS, f"no such resource; they are {SCHEME}://job/ID/{STREAM}, or with ?offset=BYTE", {"uri": uri[:200]}
        )
    return handle, min(int(offset[:19]), 1 << 62)


def _contents(uri: str, page: BytePage) -> types.TextResourceContents | types.BlobResourceContents:
    where = {"stockade/offset": page.offset, "stockade/total": page.total_bytes, "stockade/hasMore": page.has_more}
    try:
        text = page.data.decode("utf-8")
    except UnicodeDecodeError:
        data = base64.b64encode(page.data).decode("ascii")
        return types.BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=data, _meta=where)
    return types.TextResourceContents(uri=uri, mime_type="text/plain", text=text, _meta=where)
