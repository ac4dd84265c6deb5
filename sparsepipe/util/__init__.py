"""What serves all rooms: files and options, this machine, digests, numbers in words."""
