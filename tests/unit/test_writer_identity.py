"""A writer id has one process, and an epoch one start."""

import pytest

from strandline.core.errors import StackError
from strandline.ingest.append.writer_identity import WriterIdentity


def test_each_start_has_a_higher_epoch_whatever_the_clock_says(tmp_path):
    epochs = []
    for clock_s in (1_000, 1_000, 500, 2_000, 2_000):
        identity = WriterIdentity.take(tmp_path, "http-a-1", lambda now_s=clock_s: now_s)
        epochs.append(identity.epoch)
        identity.close()
    assert epochs == [1_000, 1_001, 1_002, 2_000, 2_001]


def test_a_lost_file_does_not_bring_an_old_epoch_back(tmp_path):
    first = WriterIdentity.take(tmp_path, "http-a-1", lambda: 1_000)
    first.close()
    (first.directory / "epoch").unlink()
    assert WriterIdentity.take(tmp_path, "http-a-1", lambda: 1_001).epoch > first.epoch


def test_a_second_process_is_refused_and_another_id_is_not(tmp_path):
    held = WriterIdentity.take(tmp_path, "http-a-1")
    with pytest.raises(StackError, match="another process writes as http-a-1"):
        WriterIdentity.take(tmp_path, "http-a-1")
    WriterIdentity.take(tmp_path, "http-a-2").close()
    held.close()
    WriterIdentity.take(tmp_path, "http-a-1").close()


def test_a_directory_that_can_not_be_written_is_one_clear_sentence(tmp_path):
    (tmp_path / "ingest").write_text("a file")
    with pytest.raises(StackError, match="STRANDLINE_DATA_DIR"):
        WriterIdentity.take(tmp_path, "http-a-1")
