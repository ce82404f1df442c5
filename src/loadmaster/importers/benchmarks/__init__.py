"""Graphs that others published, in the formats of their authors, and measured times of profilers.

`tasks` reads Standard Task Graphs, DOPPLER's graphs and WfCommons' workflows, `msr` and `pipedream` profiled models
with their devices or layers, `trace` puts times of a profile onto a captured graph.
"""
