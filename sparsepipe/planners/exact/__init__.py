"""The planner that searches all plans: `optimal` is its front; the rest are its bounds, searches and cost tables."""
