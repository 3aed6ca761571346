"""livekv's headless runner: executes the engine and every benchmark arm, writes Parquet."""

__version__ = "0.1.0"
