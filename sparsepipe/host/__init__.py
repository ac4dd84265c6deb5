"""What this machine is and does beside our own work, as its system tells."""
