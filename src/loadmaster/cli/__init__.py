"""The command line, `loadmaster VERB`: one function per verb, thin over the library.

`verbs` has `plan` and `compare`; `helping` finds the other daily verbs where they are typed; `tools`, `zoo` and `lab`
are groups. Each other file has what its name says. `words` says what arguments mean, `options` what verbs share,
`helping` what `--help` shows, too, `guarding` how errors, exit codes and JSON come out.
"""
