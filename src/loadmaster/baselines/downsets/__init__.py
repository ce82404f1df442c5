"""Contiguous splits over every order of the program: dynamic programmes over downsets (Tarnawski et al., 2020).

`units` finds what goes together, `enumerating` all downsets, sets of units closed under what they wait for; `stages` is
the compiled programme, `downsets` the method.
"""
