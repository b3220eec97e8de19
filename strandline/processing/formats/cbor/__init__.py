"""Maps in CBOR."""
