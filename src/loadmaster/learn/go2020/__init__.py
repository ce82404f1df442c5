"""GO 2020: one network for fusion, placement and schedule (Zhou et al., arXiv 2010.12438).

`method` is the search; `input` and `timeline` what the network sees, `network` what it is, `policy` how its scores
become plans and draws, `candidates` placements by rules that it chooses from (`zero`), `agent` its work on one problem
with `chains` of draws and `losses`; `training`, `rollouts`, `examples`, `moves` and `settings` train it. `controls` is
what learning is measured against.
"""
