# Stands in for prom/prometheus: Debian's Prometheus, an older one, with the official image's user and directories.
FROM debian
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* /etc/prometheus/* \
    && mkdir -p /prometheus && chown -R nobody:nogroup /prometheus /etc/prometheus
USER nobody
WORKDIR /prometheus
VOLUME ["/prometheus"]
ENTRYPOINT ["/bin/prometheus"]
