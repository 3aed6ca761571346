"""A llama-server of the same build: its settings, its life, and what it is asked."""
