"""What a person reads: one report of a plan, and the views that are drawn from it.

A report reads a Result and decides nothing. `schedule` is the plan as it ran, which all parts read; `answers` has what
`plan` prints, `explain` puts that and all else together as a `Report`; `sections`, `terminal`, `html`, `notebook`,
`drawing` and `chrome_trace` show it, `diff` compares two. What describes a plan is exact; what it advises was tried
(`actions`).
"""
