"""Benchmarks: suites of problems, best-known values, and tables made of records.

`suite` and `rows` say what is run, `run` runs it and goes on where it was killed (`records`), `figures` pools, `views`,
`table` and `pages` show; `best` keeps what was ever reached, `peers` are PyTorch Inductor's orders as methods.
"""
