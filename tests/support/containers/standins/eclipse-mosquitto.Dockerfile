# Stands in for eclipse-mosquitto: Debian's Mosquitto, with the official image's user and directories.
FROM debian
RUN groupadd --system --gid 1883 mosquitto && useradd --system --uid 1883 --gid mosquitto mosquitto \
    && apt-get update \
    && apt-get install --yes --no-install-recommends mosquitto mosquitto-clients \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /mosquitto/config /mosquitto/data /mosquitto/log && chown -R mosquitto:mosquitto /mosquitto
VOLUME ["/mosquitto/data", "/mosquitto/log"]
CMD ["/usr/sbin/mosquitto", "-c", "/mosquitto/config/mosquitto.conf"]
