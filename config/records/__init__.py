"""Records of a session about each test case.

In reading order:

* `metrics`: metrics that all families share
* `identity`: the short ID of a test case
* `columns`: the columns of rows, and texts in them
* `attached`: files of a measurement, beside its rows
* `samples`: the values of each call, one of these files
* `writing`: reports, logs and rows that no session of ReFrame made
* `units`: values, sizes and units as people read them
* `scenarios`: the arrangements that are measured, and their modes
"""
