# Stands in for apache/kafka: the jars of the embedded stack's broker, where and as whom the official image has them. How its start
# script makes the configuration of the environment is Kafka's own code (kafka.docker.KafkaDockerWrapper); the scripts are ours.
FROM debian
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=kafka-4.2.1 / /opt/kafka/libs
COPY --from=kafka-tools-4.2.1 / /opt/kafka/libs
COPY kafka /opt/kafka/bin
RUN useradd --uid 1000 --create-home appuser \
    && mkdir -p /opt/kafka/config /opt/kafka/logs /var/lib/kafka/data /etc/kafka/secrets /etc/kafka/docker /mnt/shared/config \
    && mv /opt/kafka/bin/log4j2.yaml /etc/kafka/docker/log4j2.yaml \
    && cp /etc/kafka/docker/log4j2.yaml /etc/kafka/docker/tools-log4j2.yaml \
    && touch /etc/kafka/docker/server.properties \
    && chown -R appuser:appuser /opt/kafka/config /opt/kafka/logs /mnt/shared/config \
    && chown -R appuser:root /var/lib/kafka /etc/kafka
USER appuser
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/opt/kafka/bin/start.sh"]
