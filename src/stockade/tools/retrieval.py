"""The host's artifacts, and `retrieve_context`, the tool that reads them (1A.11).

The tool is on offer from the moment that there is something to be read: the first banked artifact, or the first word about the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Field

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.references import PAGE_CHARS, PREVIEW_CHARS, ArtifactKind, ContentType, Reference
from stockade.bank.search import MAX_PATTERN, SearchPage
from stockade.bank.windows import MAX_CHARS, Page
from stockade.executor import Executor
from stockade.tools.schemas import WHOLE, CallContext, Effects, Params, Tool, refusal
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset
from stockade.tools.wire import reference_wire

RETRIEVE: Final = "retrieve_context"
RETRIEVE_SECONDS: Final = 10.0
NOT_FOUND: Final = "Artifact not found or has expired"
MAX_LISTED: Final = 100  # artifacts of a session in one answer

_ADVICE: Final = f'pass {{"artifactId": "…", "offset": 0, "limit": {PAGE_CHARS}}} as the reference\'s readBackHint says'


class RetrieveParams(Params):
    """Arguments of `retrieve_context`."""

    artifact_id: Annotated[str | None, Field(description="The artifact, as its reference names it.")] = None
    session_id: Annotated[str | None, Field(description="Without artifactId: list the artifacts of this session.")] = None
    offset: Annotated[int, Field(description="First character to return."), WHOLE] = 0
    limit: Annotated[int, Field(description=f"Characters to return, at most {MAX_CHARS}."), WHOLE] = PAGE_CHARS
    search: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_PATTERN,
            description="Find this literal text, in any case, from offset on; returns matches with their offsets and not the content.",
        ),
    ] = None


class HostArtifacts:
    """What one host has banked and may list; anything else is read by who knows its id."""

    def __init__(self, executor: Executor, session: HostSession, tools: Toolset, owns_job: Callable[[str], bool]) -> None:
        """`owns_job` says whether a job is this host's."""
        self._executor = executor
        self._session = session
        self._tools = tools
        self._owns_job = owns_job
        self._banked: set[str] = set()
        self._store: ArtifactStore | None = None

    def get_store(self) -> ArtifactStore:
        """The store that hosts bank in, the same one each time; offers `retrieve_context`. Its methods block."""
        self.offer()
        return self._store if self._store is not None else self._executor.artifacts

    def set_store(self, store: ArtifactStore) -> None:
        """Banks in `store` from now on; whoever made it closes it. Streams of commands stay where they were written."""
        self._store = store
        self.offer()

    def offer(self) -> None:
        """Puts `retrieve_context` on offer; once is enough."""
        if RETRIEVE not in self._tools:
            self._tools.register(self._tool())

    async def bank(
        self,
        payload: bytes | str,
        *,
        kind: ArtifactKind,
        label: str = "",
        session_id: str | None = None,
        content_type: ContentType = "text",
        preview_chars: int = PREVIEW_CHARS,
    ) -> Reference:
        """Keeps a payload and gives its reference. Raises: InvalidRequest for a kind that is none, StateError."""
        store = self.get_store()
        reference = await self._executor.call(
            store.bank_artifact,
            payload,
            kind=kind,
            label=label,
            session=self._session.resolve(CallContext(session_id)),
            content_type=content_type,
            preview_chars=preview_chars,
        )
        self._banked.add(reference.artifact_id)
        return reference

    async def read(self, artifact_id: str, offset: int = 0, limit: int | None = None) -> Page | None:
        """A window of an artifact, or all of the rest; None where it is unknown or gone. For hosts: not bounded."""
        for store in self._stores():
            page = await self._executor.call(store.read_artifact, artifact_id, offset, limit)
            if page is not None:
                return page
        return None

    def _stores(self) -> tuple[ArtifactStore, ...]:
        own = self._executor.artifacts
        return (own,) if self._store is None or self._store is own else (self._store, own)

    def _tool(self) -> Tool[RetrieveParams]:
        return Tool(
            RETRIEVE,
            "Reads a banked artifact, such as a command's complete output: a window of its text from offset on, while hasMore is true "
            "again with offset advanced by the length of the content received; or, with search, the places where a literal text occurs.",
            RetrieveParams,
            self._retrieve,
            advice=_ADVICE,
            effects=Effects(read_only=True, idempotent=True),
        )

    async def _retrieve(self, params: RetrieveParams, context: CallContext) -> Mapping[str, Any]:
        if params.artifact_id is None and params.session_id is None:
            return refusal(f"{RETRIEVE}: give artifactId, or sessionId to list a session's artifacts. Recovery: {_ADVICE}.")
        try:
            async with asyncio.timeout(RETRIEVE_SECONDS):
                if params.artifact_id is None:
                    return await self._listed(params.session_id or "")
                return await self._window(params, params.artifact_id)
        except TimeoutError:
            return refusal(f"{RETRIEVE}: no answer within {RETRIEVE_SECONDS:g} s. Recovery: ask for less with limit, or try again.")

    async def _window(self, params: RetrieveParams, artifact_id: str) -> Mapping[str, Any]:
        for store in self._stores():
            found = await self._executor.call(
                store.retrieve_context, artifact_id, offset=params.offset, limit=params.limit, pattern=params.search
            )
            if isinstance(found, Page):
                return {
                    "artifactId": artifact_id,
                    "content": found.content,
                    "totalSize": found.total_chars,
                    "hasMore": found.has_more,
                    "offset": found.offset,
                    "limit": found.limit,
                }
            if found is not None:
                return _matches(artifact_id, found)
        return {"error": NOT_FOUND, "artifactId": artifact_id}

    async def _listed(self, session: str) -> Mapping[str, Any]:
        """What this host has banked in a session, the latest last; never another host's."""
        found = []
        for store in self._stores():
            found += [
                reference
                for reference in await self._executor.call(store.find, session=session)
                if reference.artifact_id in self._banked or await self._is_own(store, reference.artifact_id)
            ]
        shown = [reference_wire(reference) for reference in found[-MAX_LISTED:]]
        return {"sessionId": session, "artifacts": shown, "total": len(found)}

    async def _is_own(self, store: ArtifactStore, artifact_id: str) -> bool:
        metadata = await self._executor.call(store.metadata, artifact_id)
        return metadata is not None and metadata.job_id is not None and self._owns_job(metadata.job_id)


def _matches(artifact_id: str, page: SearchPage) -> Mapping[str, Any]:
    more = {} if page.next_search_offset is None else {"nextSearchOffset": page.next_search_offset}
    matches = [
        {"snippetOffset" if name == "snippet_offset" else name: value for name, value in asdict(each).items()} for each in page.matches
    ]
    return {
        "artifactId": artifact_id,
        "matches": matches,
        "totalMatches": page.total_matches,
        "truncated": page.truncated,
        **more,
    }
