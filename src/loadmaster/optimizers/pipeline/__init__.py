"""Contiguous stages on consecutive devices: of one step, and of a batch in microbatches.

`split` cuts a step exactly by dynamic programming (`stages`). `microbatched` plans pipelines: cuts by `edges` and
`replicas`, schedules by `schedules`, candidates judged as graphs of actions by the one simulator (`judging`), and cuts
looked for by quick estimates (`slots`, `rehearsal`, `cuts`).
"""
