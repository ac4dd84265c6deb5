"""What this machine is, does beside our own work, and allows, as its system tells."""
