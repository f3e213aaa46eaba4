"""Records of a session about each test case.

In reading order:

* `metrics`: metrics that all families share
* `columns`: the columns of records, and records of results that others saved
* `perflog`: the handler that writes records
* `samples`: the values of each repetition, beside the records
* `units`: values, sizes and units as people read them
* `scenarios`: the arrangements that are measured, and their modes
"""
