"""From DuckDB to the site: figures, pages, downloads, the builder's table of choices."""
