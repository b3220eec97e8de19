"""The index that shows the preliminary results of open windows, without exactly-once guarantees."""
