"""Records that come twice: which of them are repeats, and how they cross the exchange."""
