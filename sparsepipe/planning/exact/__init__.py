"""The planner that searches all plans: `optimal` is the planner; the rest are its searches, bounds and cost tables."""
