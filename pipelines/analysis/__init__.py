"""Statistics DuckDB has no function for; every input row comes from it, every result goes back."""
