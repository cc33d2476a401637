"""The laboratory: data sets, the paper's networks, experiments, reports, benchmarks, playground and the command `osgd`.

It is built on the library beside it, which never imports it.
"""
