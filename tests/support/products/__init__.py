"""Messages of real products, written from their public documentation, and the types in this documentation."""
