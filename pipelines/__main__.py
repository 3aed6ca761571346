"""``python -m pipelines`` is the command line."""

from pipelines.cli import main

main()
