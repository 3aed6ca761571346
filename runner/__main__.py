"""``python -m runner`` is the command line."""

from runner.cli import main

main()
