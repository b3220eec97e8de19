"""A producer and a consumer of Kafka that do what the test tells them, over one log that both see. Nothing is real."""

import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException


@dataclass
class FakeMessage:
    """A message like a delivery report and like a fetched record."""

    topic_name: str
    value_bytes: bytes
    key_bytes: bytes | None
    header_list: list
    number: int = 0
    place: int = 0
    failure: KafkaError | None = None

    def topic(self):
        return self.topic_name

    def partition(self):
        return self.number

    def offset(self):
        return self.place

    def value(self):
        return self.value_bytes

    def key(self):
        return self.key_bytes

    def headers(self):
        return self.header_list

    def error(self):
        return self.failure


@dataclass
class FakeLog:
    """Content of the log, and its faults."""

    records: list[FakeMessage] = field(default_factory=list)
    shown: int | None = None
    """The high watermark, if it is behind."""
    tells_offsets: bool = True

    def visible(self):
        return self.records if self.shown is None else self.records[: self.shown]


class ObedientProducer:
    """Keeps records until the test says what became of them."""

    def __init__(self, config, log):
        self.config = config
        self.log = log
        self.sent = []
        self.refuse_from = None  # (number of the record that is refused at once, error)
        self.is_flushed = threading.Event()
        self._waiting = []
        self._reports = []

    def produce(self, topic, value, key, partition, on_delivery, _alias, timestamp, headers):
        if self.refuse_from and len(self.sent) >= self.refuse_from[0]:
            raise KafkaException(self.refuse_from[1])
        message = FakeMessage(topic, value, key, list(headers))
        self.sent.append(message)
        self._waiting.append((on_delivery, message))

    def report(self, count, error=None):
        """The test's word: the next `count` records are in the log, or failed."""
        reported, self._waiting = self._waiting[:count], self._waiting[count:]
        for on_delivery, message in reported:
            if error is None:
                message.place = len(self.log.records)
                self.log.records.append(message)
                if not self.log.tells_offsets:
                    told = FakeMessage(message.topic_name, message.value_bytes, message.key_bytes, [], place=-1)
                    self._reports.append((on_delivery, None, told))
                    continue
            self._reports.append((on_delivery, error, message))

    def poll(self, timeout_s):
        reports, self._reports = self._reports, []
        for on_delivery, error, message in reports:
            on_delivery(error, message)
        return len(reports)

    def purge(self):
        self.report(len(self._waiting), KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, timeout_s):
        self.poll(0)
        self.is_flushed.set()
        return len(self._waiting)

    def list_topics(self, timeout):
        return None


class ObedientConsumer:
    """Fetches its assigned partitions from the log, as far as the log shows them."""

    def __init__(self, config, log):
        self.config = config
        self.log = log
        self.positions = {}
        self.assigned = []
        self.is_closed = threading.Event()

    def incremental_assign(self, partitions):
        for partition in partitions:
            place = (partition.topic, partition.partition)
            assert place not in self.positions, f"{place} is assigned already"
            offset = partition.offset
            if offset < -2000:
                offset = max(0, len(self.log.records) - (-2000 - offset))
            assert offset >= 0
            self.positions[place] = offset
            self.assigned.append((*place, offset))

    def incremental_unassign(self, partitions):
        for partition in partitions:
            del self.positions[partition.topic, partition.partition]

    def consume(self, count, timeout_s):
        found = []
        for (topic, number), offset in self.positions.items():
            if self.log.shown is not None and offset > self.log.shown:
                failure = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                found.append(FakeMessage(topic, b"", None, [], number, offset, failure))
                continue
            records = [record for record in self.log.visible()[offset:] if record.topic_name == topic]
            found.extend(records)
            self.positions[topic, number] = max(offset, len(self.log.visible()))
        return found

    def close(self):
        time.sleep(0)
        self.is_closed.set()
