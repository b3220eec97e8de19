#!/bin/bash
# Runs a class of Kafka with the heap of KAFKA_HEAP_OPTS; logs of the JVM go to /opt/kafka/logs, as in the official image.
set -euo pipefail
mkdir -p /opt/kafka/logs
exec java ${KAFKA_HEAP_OPTS:--Xmx256M} ${KAFKA_JVM_OPTS:-} -Djava.awt.headless=true -Dkafka.logs.dir=/opt/kafka/logs \
    ${KAFKA_LOGGING:-} -cp '/opt/kafka/libs/*' "$@"
