#!/bin/bash
# Writes the configuration from the environment, formats the storage where it is not, and becomes the broker.
set -euo pipefail
[ -w /opt/kafka/config/ ] || { echo "/opt/kafka/config/ is not writable" >&2; exit 1; }
setup=$(/opt/kafka/bin/run-class.sh kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1) ||
    grep -qi "already formatted" <<< "$setup" || { echo "$setup" >&2; exit 1; }
export KAFKA_LOGGING=-Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml
export KAFKA_JVM_OPTS="-server -XX:+UseG1GC -Xlog:gc*:file=/opt/kafka/logs/kafkaServer-gc.log"
exec /opt/kafka/bin/run-class.sh kafka.Kafka /opt/kafka/config/server.properties
