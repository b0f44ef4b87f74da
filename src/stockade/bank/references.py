"""What is said about a banked artifact: the reference with its preview and the call that reads the rest (1A.11, N-B1)."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

ArtifactKind = Literal["worker-report", "command-output", "stage-output", "other"]
ContentType = Literal["text", "json", "bytes"]
KINDS: Final[tuple[str, ...]] = get_args(ArtifactKind)
PREVIEW_CHARS: Final = 1_000
MAX_PREVIEW_CHARS: Final = 4_000
STREAM_PREVIEW_CHARS: Final = 600
PAGE_CHARS: Final = 50_000
ELLIPSIS: Final = "…"


class Reference(BaseModel):
    """A banked artifact, small enough to show; `artifact_id` is empty where banking failed (N-B1), `size_bytes` in
    bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact_id: str
    label: str
    kind: ArtifactKind
    size_bytes: Annotated[int, Field(ge=0)]
    preview: str
    read_back_hint: str


def preview_of(text: str, chars: int) -> str:
    """The head of `text`, at most `chars` characters (0 to 4 000), and an ellipsis where it was cut."""
    chars = max(0, min(chars, MAX_PREVIEW_CHARS))
    return text if len(text) <= chars else text[:chars] + ELLIPSIS


def read_back_hint(artifact_id: str, size_bytes: int, *, lost_bytes: int = 0) -> str:
    """How to read an artifact of `size_bytes`; `lost_bytes` before it were not kept."""
    kept = (
        "nothing was discarded"
        if not lost_bytes
        else f"the {lost_bytes} bytes before them were discarded, as the policy keeps only the tail"
    )
    return (
        f"The content is banked in full: {size_bytes} bytes, {kept}. Read it with "
        f'retrieve_context({{"artifactId": "{artifact_id}", "offset": 0, "limit": {PAGE_CHARS}}}) and, while hasMore is true, '
        f"repeat with offset advanced by the length of the content received."
    )


def unbanked(*, label: str, kind: ArtifactKind, size_bytes: int, preview: str, reason: str, paths: tuple[str, ...]) -> Reference:
    """The reference of what could not be banked: no id, the reason, and where its bytes are on this host (N-B1)."""
    where = f"the bytes are on this host in {', '.join(paths)}" if paths else "its bytes are no longer on this host"
    return Reference(
        artifact_id="",
        label=label,
        kind=kind,
        size_bytes=size_bytes,
        preview=preview,
        read_back_hint=(f"The artifact could not be created: {reason}. retrieve_context has nothing to read for it; {where}."),
    )


class Metadata(BaseModel):
    """The sidecar of an artifact; `created_at` in seconds since the epoch, `lost_bytes` those that a tail lacks at its
    head.

    `origin_hex` is the path of a taken file in its workspace: names are bytes, and JSON has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    artifact_id: Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,127}\z")]
    label: Annotated[str, Field(min_length=1, max_length=4_096)]
    kind: ArtifactKind
    content_type: ContentType = "text"
    session: str | None = None
    job_id: str | None = None
    stream: str | None = None
    size_bytes: Annotated[int, Field(ge=0)]
    lost_bytes: Annotated[int, Field(ge=0)] = 0
    created_at: float
    preview: Annotated[str, Field(max_length=MAX_PREVIEW_CHARS + 1)]
    origin_hex: Annotated[str, Field(pattern=r"\A([0-9a-f]{2})+\z")] | None = None
    executable: bool = False

    @property
    def origin(self) -> str | None:
        """The path that a taken file had in its workspace, with undecodable bytes as surrogates."""
        return os.fsdecode(bytes.fromhex(self.origin_hex)) if self.origin_hex else None

    def reference(self) -> Reference:
        """What is shown of the artifact."""
        return Reference(
            artifact_id=self.artifact_id,
            label=self.label,
            kind=self.kind,
            size_bytes=self.size_bytes,
            preview=self.preview,
            read_back_hint=read_back_hint(self.artifact_id, self.size_bytes, lost_bytes=self.lost_bytes),
        )
