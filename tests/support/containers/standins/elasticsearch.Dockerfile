# Stands in for elasticsearch: the embedded stack's server, with the directories, owners and modes of the official image.
FROM debian
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless curl tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=elasticsearch-8.19.21 / /usr/share/elasticsearch
COPY elasticsearch /usr/local/bin
WORKDIR /usr/share/elasticsearch
RUN groupadd --gid 1000 elasticsearch && useradd --uid 1000 --gid 1000 --groups root --home-dir /usr/share/elasticsearch elasticsearch \
    && sed -i 's/^ES_DISTRIBUTION_TYPE=.*/ES_DISTRIBUTION_TYPE=docker/' bin/elasticsearch-env \
    && mkdir -p data logs plugins config/jvm.options.d \
    && printf 'cluster.name: "docker-cluster"\nnetwork.host: 0.0.0.0\n' > config/elasticsearch.yml \
    && find . -type d -exec chmod 0555 {} + && find . -type f -exec chmod 0444 {} + && chmod 0555 bin/* \
    && chmod 0775 . bin config config/jvm.options.d data logs plugins && find config -type f -exec chmod 0664 {} + \
    && chown elasticsearch bin config config/jvm.options.d data logs plugins
ENV ELASTIC_CONTAINER=true ES_JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64
USER 1000:0
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/elasticsearch-start.sh"]
