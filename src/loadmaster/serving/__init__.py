"""Serving: one placement of whole modules for prefill and decode of a language model, and what runtimes take of it.

`phases` captures what a request runs, `experts` sets those of mixtures apart, `services` prices every phase over the
same units, `placing` decides which module computes where and which weights stay in host memory, `rules` has what other
tools do, `exports` writes it down in their words, and `readback` holds that against the plan; `planning` is all of that
in one call. `reserve` says what a runtime takes beside. `language` is a model by the sizes in its files: `llama_cpp`
plans from it, and `fitting` says what would make a model fit.
"""
