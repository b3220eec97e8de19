"""A format for Strandline: small binary frames. Defined outside of it, as any package could."""
