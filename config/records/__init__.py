"""Records of a session about each test case.

In reading order:

* `metrics`: metrics that all families share
* `perflog`: the handler that writes records, and their columns
* `samples`: the values of each repetition, beside the records
* `sizes`: sizes in bytes as people write them
* `points`: names of points of services
"""
