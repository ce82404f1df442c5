"""Serving: one placement of whole modules for prefill and decode of a language model, and what runtimes take of it.

`phases` captures what a request runs, `placement` decides which module computes where and which weights stay in host
memory, `rules` has what other tools do, `exports` writes it down in their words.
"""
