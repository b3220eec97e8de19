"""Binary frames with a device, a time, and a value."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from acme_frames.frame import SIZE
from strandline.core.documents import Path
from strandline.core.errors import PermanentError
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from acme_frames.reader import FrameReader
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.inference.sample import Proposed, Sample


class FramesFormat(Format):
    name = "acme_frames"
    options_description = "Byte order, for the format acme_frames."
    content_type = b"application/vnd.acme.frame"
    file_suffix = ".frames"
    file_name = "a file of frames"

    def options(self) -> type[DocumentModel]:
        from acme_frames.document import FramesSpec

        return FramesSpec

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        for name in stream.fields:
            if name not in ("device", "time", "value"):
                yield ("schema", name), "a frame has device, time, and value; remove the field"

    def read_options(self, stream: StreamDocument) -> Hashable:
        return stream.options.byte_order if stream.options is not None else "little"

    def reader(self, request: ReaderRequest) -> FormatReader:
        from acme_frames.reader import FrameReader

        reader: FrameReader = FrameReader(request.fields, request.options)
        return reader

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from acme_frames.sample import propose_frames

        content = sample.content
        if len(content) % SIZE:
            return None
        return propose_frames(name, [content[at : at + SIZE] for at in range(0, len(content), SIZE)])

    def propose_for_records(self, name: str, records: Sequence[bytes]) -> Proposed | None:
        from acme_frames.sample import propose_frames

        return propose_frames(name, records)

    def file_records(self, file: BinaryIO, options: Any, name: str) -> Iterator[bytes]:
        while content := file.read(SIZE):
            if len(content) < SIZE:
                raise PermanentError(f"{name}: the last frame is cut short; write the file again")
            yield content


FORMAT = FramesFormat()
