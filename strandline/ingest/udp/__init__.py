"""The UDP gateway: datagrams, signed or not."""
