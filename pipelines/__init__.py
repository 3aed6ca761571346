"""livekv's pipelines: Parquet to DuckDB, DuckDB to ratios, verdicts and pages."""
