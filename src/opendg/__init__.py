"""OpenDG."""
