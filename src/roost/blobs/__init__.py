"""Where snapshots and files are kept: a folder, or a bucket."""
