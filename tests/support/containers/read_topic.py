"""Runs inside a container of ours: `python - KAFKA TOPIC` prints the values of a topic's records as a JSON list."""

import json
import sys

from confluent_kafka import Consumer, KafkaError, TopicPartition

kafka, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": kafka, "group.id": "none", "enable.partition.eof": True})
numbers = list(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
values, unread = [], set(numbers)
while unread:
    message = consumer.poll(60)
    if message is None:
        sys.exit(f"no answer from {kafka}")
    if message.error() is None:
        values.append(message.value().decode())
    elif message.error().code() == KafkaError._PARTITION_EOF:
        unread.discard(message.partition())
    else:
        sys.exit(str(message.error()))
print(json.dumps(values))
