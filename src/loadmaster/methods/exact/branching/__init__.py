"""Branch and bound over all timelines of small problems.

`branch_and_bound` has the method, `moments` a step stopped in the middle and what can be decided next, `least` what no
way on can beat, `tree` the depth-first walk, and `beside` runs all that on a thread while something else searches. It
needs no solver package, unlike `exact`.
"""
