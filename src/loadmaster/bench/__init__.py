"""Benchmarks: suites of problems, published figures beside ours, best-known values, and tables and pages made of
records.

`suite` and `rows` say what is run, `run` runs it and goes on where it was killed (`records`), `figures` pools, `views`,
`table`, `pages` and `picture` show; `best` keeps what was ever reached, `published` what others say, `peers` are other
tools as methods. `quality` holds searches to what they promise, `tune` looks for BRKGA's settings.
"""
