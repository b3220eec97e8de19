"""Files next to a document that contain its schema."""

FROM_BESIDE = (
    "is only allowed in files for `strandline apply`, which replaces it by the content of the file; elsewhere, "
    "write the content itself, as '{}'"
)
"""Message for a field that names a file, if the document is read without its folder."""
