"""A session of ReFrame: its start, its test cases and its records.

In reading order:

* `modes`: the modes of `reframe --mode`
* `selection`: the test cases of modes smoke and veto
* `cost`: the maximum node-hours of test cases together
* `caller`: variables of the caller that must not change records
* `session_id`: names of sessions
* `record`: report and log of a session
* `clock`: sessions that are dated in the future or before the newest record
* `lock`: one session at a time on a machine, one set-up per work folder
* `progress`: how far a session is, for one line of `plumb run`
* `judged`: how a value compares with its reference
* `slurm_jobs`: jobs of a session that ReFrame does not cancel
"""
