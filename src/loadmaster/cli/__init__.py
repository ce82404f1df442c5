"""The command line, `loadmaster VERB`: one function per verb, thin over the library.

`verbs` has the first ones and gathers the rest, by file: `reports` (saved plans), `serve` (whole modules), `run`,
`measure`, `fits`, `tradeoff`, `shelves`, `experience`; `lab`: what those who make methods use. `words` says what
arguments mean, `options` what verbs share, `guarding` how errors, exit codes and JSON come out.
"""
