"""What people see of values: markup that is safe, text that is plain."""
