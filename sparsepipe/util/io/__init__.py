"""What comes in from files and from users' typing, and goes out: checked as it is read, whole when it is written."""
