"""Files next to a document that contain its schema."""

FROM_BESIDE = (
    "is replaced by the file's content by `strandline apply`, which reads files next to the document; to another reader of "
    "documents give the content itself, as '{}'"
)
"""Message for a field that names a file, if the document is read without its folder."""
