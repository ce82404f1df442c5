"""What a person reads: tables, and the numbers behind them as plain data.

A report reads a Result and decides nothing. `schedule` is the plan as it ran, which all parts read; `explain` and
`diff` put parts together; `words`, `terminal`, `html`, `notebook`, `gantt`, `plot` and `chrome_trace` show them. Every
number is exact or simulated, and every table is there as JSON, too (`summary`).
"""
