"""Maps in MessagePack."""
