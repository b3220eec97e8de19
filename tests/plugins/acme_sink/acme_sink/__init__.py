"""A sink: Arrow files, one for each slice, in the directory of `ACME_ARROW_DIRECTORY`."""
