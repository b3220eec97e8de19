#!/bin/bash
export KAFKA_LOGGING=-Dlog4j2.configurationFile=/opt/kafka/config/tools-log4j2.yaml
exec /opt/kafka/bin/run-class.sh org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
