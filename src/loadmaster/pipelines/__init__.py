"""Pipelines of a batch in microbatches.

`microbatched` plans them: stages cut by `edges`, `cuts` and `stages`, schedules by `schedules`, candidates judged as
graphs of actions by the one simulator (`judging`), looked for by quick estimates (`slots`, `rehearsal`).
"""
