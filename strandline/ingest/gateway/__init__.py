"""What all gateways share: their process, framing, the streams they know, metrics and health pages."""
